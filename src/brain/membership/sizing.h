// How large an elastic job is, and where its ranks are. The policy (elastic_policy.h) says how many replicas; here that
// becomes units: places of a node, or whole nodes, that come and go together. Pure.
//
// Newcomers get ready while training runs. Then all members pause at the end of a step, are sealed there, and the next
// generation has other slots. Survivors keep their process; their rank may be another one, because ranks have no gaps.
// Who has no rank any more waits as a spare, with its state, and is the first to get one again.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

class Sizing {
 public:
  explicit Sizing(Job& job) : job_(job), policy_(*job.config.elastic) {}

  // ---- the start ----
  // Nodes came or went before it.
  void note_nodes();
  bool enough_nodes() const;
  // The first node holds rank 0 (it is the coordinator's), the others follow by their numbers.
  void start();

  // ---- what is wanted ----
  // False: refused, and journalled.
  bool scale(const ScaleRequested& event);
  bool configure(const PolicyChanged& event);
  // Why the job has to end: no size that it may have can be fed. Nothing: it goes on.
  std::optional<std::string> limit(const MostUseful& event);
  // A node was told to leave. True: it has ranks, so the size has to be considered.
  bool leave(const NodeLeaves& event);
  // The view is stale: something happened.
  void forget_view() { view_.reset(); }
  // Asked at every tick, and when something happened that may change the answer.
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
  // The verdict is out. What was wanted may not be there any more: then as much of it as can be had. A fault: no
  // rank that is left has the state.
  std::optional<Fault> resize();
  struct Resize {
    uint32_t replicas = 0;
    bool forced = false;
    std::string because;
  };
  // A plain script whose members all exited with 0. Who was told that the world changes, and said that it heard, wants
  // to go on in the new one. Nothing: the job is over.
  std::optional<Resize> begins_again() const;
  void began_again(uint32_t replicas_before, const Resize& wanted);
  bool resized() const { return unformed_.has_value(); }
  void formed();  // a generation did
  // From those that were told to leave and have no ranks, if the job is not between two generations.
  void part_from_leavers();
  // A rank that the job had grown to failed before its generation formed: whatever it is, those that trained before go
  // on without the newcomers. If that happens again and again on a node without other ranks, it gets none any more. Why
  // they are sealed; nothing: it was no such rank.
  std::optional<std::string> give_up_growth(Rank rank, const std::string& what);
  uint32_t replicas() const { return job_.placement.world() / job_.config.ranks_per_replica; }

 private:
  using Slot = Placement::Slot;
  using Unit = Placement::Unit;
  struct View {
    ElasticView elastic;
    bool recoverable = false;  // all survivors are
  };

  uint32_t unit_ranks() const;
  uint32_t replicas_of(size_t units) const;
  std::vector<Unit> units() const;
  ElasticView view_of(const std::vector<Unit>& all) const;
  void ask_policy(const ElasticView& view);
  uint32_t most_fed() const;

  // sizing_change.cc
  uint32_t most_replicas(const std::vector<Unit>& all) const;
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
  std::optional<Time> enough_since_;  // nodes to begin with
  std::optional<View> view_;          // as things stand; nothing: it has to be looked at again
  std::optional<Resize> wanted_;      // decided, and not carried out yet
  bool pausing_ = false;              // members were asked to pause for it
  std::vector<NodeId> stay_;          // as they were told then
  Time paused_at_{};                  // the newest of those that did
  std::optional<Time> postponed_at_;
  bool was_postponed_ = false;             // the last change was postponed, and none was carried out since
  std::optional<Resize> unformed_;         // carried out, and not formed yet
  uint32_t formed_replicas_ = 0;           // of the generation that formed last
  std::map<NodeId, int> growth_failures_;  // since a generation formed with ranks on that node
  uint32_t useful_ranks_ = 0;              // 0: not known
  std::vector<uint32_t> even_sizes_;       // see MostUseful::sizes
  std::string stays_because_;              // journalled last, at
  Time stays_said_at_{-std::chrono::hours(1)};
};

}  // namespace keepstep::brain
