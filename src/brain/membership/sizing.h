// How large an elastic job is, and where its ranks are. The policy (elastic_policy.h) chooses the number of replicas.
// This class turns it into units: places on a node, or whole nodes, that are added and removed together. Pure.
//
// Newcomers get ready while training runs. Then all members pause at the end of a step and are sealed there, and the
// next generation has other slots. Survivors keep their process; their rank may change, because ranks have no gaps. A
// worker that loses its rank waits as a spare, with its state, and is the first to get a rank again.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

class Sizing {
 public:
  explicit Sizing(Job& job) : job_(job), policy_(*job.config.elastic) {}

  // ---- the start ----
  // Nodes joined or left before the start.
  void note_nodes();
  bool enough_nodes() const;
  // The first node holds rank 0 (it is the coordinator's), the others follow by id.
  void start();

  // ---- what is wanted ----
  // False: refused and journalled.
  bool scale(const ScaleRequested& event);
  bool configure(const PolicyChanged& event);
  // Why the job must end: none of its allowed sizes can be fed. std::nullopt: it continues.
  std::optional<std::string> limit(const UsefulWorlds& event);
  // A node was told to leave. True: it has ranks, so the size must be reconsidered.
  bool leave(const NodeLeaves& event);
  // The view is stale: something happened.
  void forget_view() { view_.reset(); }
  // Called at every tick, and when something happened that may change the answer.
  struct Next {
    enum class What { kNothing, kResize, kPause, kSeal };
    What what = What::kNothing;
    std::string because = "";
  };
  Next next();

  // ---- members that pause ----
  bool pausing() const { return pausing_; }
  Pause pause() const;
  // All members wait at the end of a step, or before their first. Returns why they are sealed.
  std::string all_paused();
  void note_pause() { paused_at_ = job_.now; }
  void stop_pausing() { pausing_ = false; }

  // ---- another world ----
  // The verdict is out. If what was wanted is no longer available, takes as much of it as possible. Returns a fault if
  // no remaining rank has the state.
  std::optional<Fault> resize();
  struct Resize {
    uint32_t replicas = 0;
    bool forced = false;
    std::string because;
  };
  // For a plain script whose members all exited with 0. If all of them acknowledged the announced change of the world,
  // they want to go on in the new one. std::nullopt: the job is over.
  std::optional<Resize> begins_again() const;
  void began_again(uint32_t replicas_before, const Resize& wanted);
  bool resized() const { return unformed_.has_value(); }
  void formed();  // a generation formed
  // Releases nodes that were told to leave and have no ranks, unless the job is between two generations.
  void part_from_leavers();
  // A rank that the job had grown by failed before its generation formed. Whatever the cause, those that trained before
  // continue without the newcomers. If this happens repeatedly on a node without other ranks, the node gets none any
  // more. Returns why the members are sealed; std::nullopt if it was not such a rank.
  std::optional<std::string> give_up_growth(Rank rank, const std::string& what);
  uint32_t replicas() const { return job_.placement.world() / job_.config.ranks_per_replica; }

 private:
  using Slot = Placement::Slot;
  using Unit = Placement::Unit;
  struct View {
    ElasticView elastic;
    bool recoverable = false;  // all survivors are recoverable
  };

  uint32_t unit_ranks() const;
  uint32_t replicas_of(size_t units) const;
  std::vector<Unit> units() const;
  ElasticView view_of(const std::vector<Unit>& all) const;
  void ask_policy(const ElasticView& view);
  uint32_t max_fed() const;

  // sizing_change.cc
  uint32_t max_replicas(const std::vector<Unit>& all) const;
  std::vector<Unit> choose(const std::vector<Unit>& all, uint32_t replicas) const;
  std::vector<NodeId> who_would_stay() const;
  const char* why_not_now(const std::vector<Unit>& chosen) const;
  std::optional<std::vector<Unit>> choose_for_shards(std::vector<Unit> all, uint32_t replicas) const;
  const char* why_no_shards(const std::vector<Unit>& chosen) const;
  bool anybody_has_state() const;
  void carry_out(const std::vector<Unit>& chosen, const Resize& wanted);
  void settle(const std::vector<Unit>& chosen);

  Job& job_;
  ElasticPolicy policy_;
  std::optional<Time> enough_since_;  // since there are enough nodes to begin
  std::optional<View> view_;          // the current situation; std::nullopt: it must be looked at again
  std::optional<Resize> wanted_;      // decided, but not carried out yet
  bool pausing_ = false;              // members were asked to pause for it
  std::vector<NodeId> stay_;          // as announced to them then
  Time paused_at_{};                  // when the last of them paused
  std::optional<Time> postponed_at_;
  bool was_postponed_ = false;             // the last change was postponed, and none has been carried out since
  std::optional<Resize> unformed_;         // carried out, but not formed yet
  uint32_t formed_replicas_ = 0;           // of the last generation that formed
  std::map<NodeId, int> growth_failures_;  // since a generation formed with ranks on that node
  uint32_t useful_ranks_ = 0;              // 0: not known
  std::vector<uint32_t> even_sizes_;       // see UsefulWorlds::sizes
  std::string stays_because_;              // the last one journalled, and when
  Time stays_said_at_{-std::chrono::hours(1)};
};

}  // namespace keepstep::brain
