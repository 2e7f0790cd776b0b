// Which version of whose state is where, and which is the newest whole one. This is the only place that answers this:
// for processes that hold all of the state, for shards in processes, for their copies and parity, and for saved
// checkpoints. Pure.
//
// What nodes and processes hold is known from their answers to a Seal; the next Seal asks again.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/commit/step_commit.h"
#include "brain/copies/shard_copies.h"
#include "brain/membership/round.h"
#include "brain/types.h"

namespace keepstep::brain {

class Holdings {
 public:
  // ---- saved checkpoints: what every process can build or load on its own ----
  Version origin() const { return origin_; }
  // Whether the steps up to `version`, as generation `generation` did them, have been redone since, or may be redone
  // with other bits: returns the version at which a later generation began. std::nullopt: the version is valid.
  std::optional<Version> begun_below(Version version, uint32_t generation) const;
  void saved(Version version) { origin_ = version; }
  // Another recoverable function begins: nothing of the generations up to `generation` is valid any more.
  void start_again(uint32_t generation);
  // Whether a generation belonged to a function that is over. Generation 0, of another start of the job, never does.
  bool precedes(uint32_t generation) const { return generation != 0 && generation <= functions_until_; }

  // ---- processes that hold all of the state ----
  // The version that the process has, or will get to, as of its last seal; std::nullopt if none.
  void note(WorkerId worker, std::optional<Version> version);
  bool holds(WorkerId worker, Version version) const;
  void forget(WorkerId worker) { holds_.erase(worker); }

  // ---- shards ----
  bool sharded() const { return sharded_; }
  void shard() { sharded_ = true; }
  // The sharding of the newest generation, and the sharding in which its version was kept when it was prepared: this
  // one or the previous one.
  const Sharding& sharding() const { return sharding_; }
  const Sharding& kept_in() const { return kept_in_; }
  // The next generation has another sharding.
  void reshard() { resharded_ = true; }
  bool resharded() const { return resharded_; }
  // A generation of `world` ranks begins at `version`. `is_start`: the job starts, or what it held was given up.
  void begin(uint32_t generation, Version version, Rank world, bool is_start);
  // What a node answered about its memory; the next Seal asks again.
  void forget_copies();
  void note_copies(const Sealed& answer);
  void lose(NodeId node);

  struct Kept {
    Verdict verdict;    // at the version that the job continues from
    Sharding sharding;  // how what is left of it is divided
  };
  // `living`: what living, valid processes hold. `resharded`: the state goes to other ranks, so only copies are
  // sources, not processes. `only`: what these nodes have; null: all nodes. std::nullopt if no version is whole;
  // `missing` (may be null) then says why.
  std::optional<Kept> newest_kept(const Verdict& verdict, Identity identity, const std::vector<SealedWord>& living,
                                  bool resharded, const std::set<NodeId>* only, std::string* missing) const;
  // The next generation takes its state from this result of newest_kept().
  void keep(const Kept& kept) { kept_in_ = kept.sharding; }

 private:
  struct Begun {
    uint32_t generation = 0;
    Version version = 0;
  };
  Version origin_ = 0;            // the newest saved version
  uint32_t functions_until_ = 0;  // see start_again
  // Where generations began, without those that a later one began below or at: both numbers only grow. What an earlier
  // generation saved is valid up to there.
  std::vector<Begun> begun_;
  std::map<WorkerId, Version> holds_;
  bool sharded_ = false;  // a member said so at some point
  Sharding sharding_;
  Sharding kept_in_;
  bool resharded_ = true;
  std::map<NodeId, std::vector<ShardCopy>> copies_;
  std::map<NodeId, std::vector<ParityCopy>> parity_;
};

}  // namespace keepstep::brain
