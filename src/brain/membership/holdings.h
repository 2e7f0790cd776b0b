// Which version of whose state is where, and which is the newest whole one: the only place that answers this, for
// processes that hold all of it, for shards in processes, copies and parity of them, and for saved checkpoints. Pure.
//
// What nodes and processes hold is known from their answers to a Seal; it is asked for again with the next one.
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
  // ---- saved checkpoints: what every process can build or load by itself ----
  Version origin() const { return origin_; }
  // Where the steps up to `version`, as generation `generation` did them, were done again meanwhile, or may be with
  // other bits: the version that a later generation began at. Nothing: it counts.
  std::optional<Version> begun_below(Version version, uint32_t generation) const;
  void saved(Version version) { origin_ = version; }
  // Another recoverable function begins: nothing of the generations up to `generation` counts any more.
  void start_again(uint32_t generation);
  // Whether a generation was of a function that is over. 0, of another start of the job, never was.
  bool precedes(uint32_t generation) const { return generation != 0 && generation <= functions_until_; }

  // ---- processes that hold all of the state ----
  // A version that the process has, or comes to, as it was sealed last; nothing: none.
  void note(WorkerId worker, std::optional<Version> version);
  bool holds(WorkerId worker, Version version) const;
  void forget(WorkerId worker) { holds_.erase(worker); }

  // ---- shards ----
  bool sharded() const { return sharded_; }
  void shard() { sharded_ = true; }
  // Of the newest generation; and the division in which its version was kept when it was prepared: this one, or the one
  // before.
  const Sharding& sharding() const { return sharding_; }
  const Sharding& kept_in() const { return kept_in_; }
  // The next generation divides the state otherwise.
  void reshard() { resharded_ = true; }
  bool resharded() const { return resharded_; }
  // A generation of so many ranks begins at `version`. `is_start`: of the job, or after what it held was given up.
  void begin(uint32_t generation, Version version, Rank world, bool is_start);
  // What lies in a node's memory, as it answered; the next Seal asks again.
  void forget_copies();
  void note_copies(const Sealed& answer);
  void lose(NodeId node);

  struct Kept {
    Verdict verdict;    // at the version that the job goes on from
    Sharding sharding;  // how what is left of it is divided
  };
  // `living`: what processes hold that live, and that count. `resharded`: the state goes to other ranks, so that
  // processes are no sources, only copies. `only`: what these nodes have; null: all. Nothing: no version is whole;
  // `missing` (may be null) then says why.
  std::optional<Kept> newest_kept(const Verdict& verdict, Identity identity, const std::vector<SealedWord>& living,
                                  bool resharded, const std::set<NodeId>* only, std::string* missing) const;
  // What newest_kept() said is what the next generation takes its state from.
  void keep(const Kept& kept) { kept_in_ = kept.sharding; }

 private:
  struct Begun {
    uint32_t generation = 0;
    Version version = 0;
  };
  Version origin_ = 0;            // the newest saved version
  uint32_t functions_until_ = 0;  // see start_again
  // Where generations began, without those that a later one began below or at: both numbers only grow. What an earlier
  // generation saved counts up to there.
  std::vector<Begun> begun_;
  std::map<WorkerId, Version> holds_;
  bool sharded_ = false;  // so a member said, once
  Sharding sharding_;
  Sharding kept_in_;
  bool resharded_ = true;
  std::map<NodeId, std::vector<ShardCopy>> copies_;
  std::map<NodeId, std::vector<ParityCopy>> parity_;
};

}  // namespace keepstep::brain
