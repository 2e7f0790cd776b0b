// The coordinator's brain: who is in the job, which generation it is in, and what happens after a fault. Pure.
//
// One entrance: `step(event, now)` returns the effects, in the order in which the shell must carry them out. Repeated,
// late and reordered events are harmless: each names a worker incarnation or an identity, and what is old or unknown
// is ignored. Effects may get lost on the way: `Tick` repeats what has not been answered.
//
// What the shell must see to: events that answer nothing (Parked, Died, Exited, Faulted, Finished, Recoverable) arrive
// at least once; a Kill for a worker that it does not know, or that is dead already, is answered with WorkerDied again;
// a Prepare or Activate older than a Seal is dropped.
//
// A generation's life:
//   gathering  every rank needs a worker that is parked (a spare, or one just spawned) or a survivor
//   forming    Prepare is out; each member unwinds, maps its peers, and answers Ready with the state it holds. A plain
//              script (no recoverable function) need not answer: it may do all its work here, until it exits with 0
//   running    Activate is out: those that are empty hydrate from those that are clean, then train
//   sealing    a member died or raised, or the world is to change: words are sealed, the verdict follows from them
//              (step_commit.h), then gathering again
// Where the job is elastic, the world grows and shrinks between two generations (elastic_policy.h says when, and
// membership_elastic.cc how): running members pause at the end of a step, and are sealed there like after a fault.
// The job ends when all members finished or exited with 0, when the ladder gives up, or when somebody asks. Who dies
// after Release is told of at that end: the others may still write their last files.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/commit/step_commit.h"
#include "brain/elastic/elastic_policy.h"
#include "brain/membership/holdings.h"
#include "brain/membership/membership_messages.h"
#include "brain/membership/placement.h"
#include "brain/membership/recovery_ladder.h"
#include "brain/membership/roster.h"
#include "brain/membership/round.h"
#include "brain/types.h"

namespace keepstep::brain {

struct MembershipConfig {
  uint32_t term = 1;
  uint32_t nodes = 1;        // the job starts once so many have joined; each gets its share of consecutive ranks
  uint32_t spare_nodes = 0;  // nodes beyond those, with ids from `nodes` on (else ids are free), that wait
  uint32_t world_size = 1;   // ranks, at least one a node
  uint32_t spares = 0;       // on each node
  LadderConfig ladder;
  Time repeat_after = std::chrono::milliseconds(500);  // unanswered Seal, Prepare
  Time interrupt_timeout = std::chrono::seconds(60);   // a survivor that does not leave its step is killed
  Time start_timeout = std::chrono::seconds(600);      // a worker that does not park, a newcomer that is not Ready, too
  Time node_timeout = std::chrono::seconds(60);        // for another node to take the place of a lost one
  int start_failures = 3;  // workers of a node, without a rank, that may be lost in a row with no progress in between
  // An elastic job. `nodes` is the fewest that it starts with, `world_size` then follows from who is there.
  std::optional<ElasticConfig> elastic;
  uint32_t most_nodes = 0;
  uint32_t ranks_per_node = 0;
  uint32_t ranks_per_replica = 1;              // divides ranks_per_node, or is a multiple of it
  Time start_grace = std::chrono::seconds(2);  // for more nodes, once enough have come
};

class Membership {
 public:
  explicit Membership(MembershipConfig config);
  Effects step(const Event& event, Time now);

  // For status lines and tests.
  Identity identity() const { return round_.identity(); }
  Version version() const { return version_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  size_t known_workers() const { return roster_.size(); }

 private:
  enum class Phase { kWaiting, kGathering, kForming, kRunning, kSealing, kEnded };
  enum class Cause { kStart, kReplace, kRestart };  // why we gather
  using Origin = Placement::Origin;
  using Slot = Placement::Slot;
  using Unit = Placement::Unit;
  using Status = Roster::Status;
  using Worker = Roster::Worker;

  // One for each event.
  void on(const NodeJoined& event);
  void on(const NodeLost& event);
  void on(const WorkerParked& event);
  void on(const WorkerRecoverable& event);
  void on(const WorkerDied& event);
  void on(const WorkerHung& event);
  void on(const WorkerExited& event);
  void on(const WorkerFaulted& event);
  void on(const Sealed& event);
  void on(const Ready& event);
  void on(const Formed& event);
  void on(const Progress& event);
  void on(const WorkerFinished& event);
  void on(const StopRequested& event);
  void on(const WorkerPaused& event);
  void on(const NodeLeaves& event);
  void on(const ScaleRequested& event);
  void on(const PolicyChanged& event);
  void on(const MostUseful& event);
  void on(const Saved& event);
  void on(const Tick& event);

  // membership.cc: from gathering to running to the end
  uint32_t most_ranks_of_a_node() const;
  bool enough_nodes() const;
  uint32_t spares_of(NodeId node) const;
  void start();
  void gather();
  void fill(Rank rank);
  bool all_left();
  void prepare();
  void send_prepare();
  const char* replaced_by(const std::vector<int64_t>& newcomers) const;
  void activate();
  void send_activate();
  void formed();
  void remember_formed();
  void forget_the_gone();
  void keep_spares();
  void check_finished();
  void check_left_behind();
  void release();
  void end(int exit_code, const std::string& message, const std::string& traceback);
  void repeat_unanswered();
  Time node_timeout() const;
  void kill_the_late();
  void watch(WorkerId id);
  std::optional<Time> deadline_of(WorkerId id, const Worker& worker) const;
  std::string lateness_of(WorkerId id, const Worker& worker) const;
  bool builds(const Worker& member) const;

  // membership_recovery.cc: from a fault to gathering
  void member_died(Rank rank, bool recoverable, int exit_code, const std::string& what, const std::string& traceback);
  void member_left(Rank rank, bool recoverable, const std::string& what);
  void died_late(const std::vector<Rank>& ranks, int exit_code, const std::string& what, const std::string& traceback);
  void tell_of_waiting(NodeId lost);
  void candidate_lost(const Worker& worker, bool counts, int exit_code, const std::string& what,
                      const std::string& traceback);
  void seal(const std::string& because);
  void conclude_if_sealed();
  void conclude();
  void note_what_they_hold();
  std::vector<SealedWord> living_words(const std::set<NodeId>* only) const;
  std::optional<Holdings::Kept> kept(const Verdict& verdict, bool resharded, const std::set<NodeId>* only,
                                     std::string* missing) const;
  std::optional<Holdings::Kept> kept_or_rung(const Verdict& verdict, bool resharded, const std::set<NodeId>* only);
  std::optional<Verdict> whole(const Verdict& verdict);
  bool still_whole();
  void journal_verdict(const Verdict& verdict, Version reached);

  // membership_digests.cc: who is lying
  bool judge(const std::vector<SealedWord>& words);
  void judge_by_redo(const Progress& event);
  void note_corruption(const Disagreement& found, const std::vector<RankDigest>& odd, const std::string& because);
  std::optional<Rank> dismiss(const std::vector<RankDigest>& odd, const std::string& because);
  void leave_lying_node(const std::vector<RankDigest>& odd, const std::string& because);

  void confirm_exit(WorkerId worker);
  std::vector<WorkerId> lose_workers_of(NodeId node);  // those that lived until now
  bool survivors_recoverable(bool the_lost_one_was) const;
  void note_fault(const WorkerDied& event, const Worker& worker, const std::string& because);

  // membership_rungs.cc: which rung a fault takes, and what the rungs beyond a replaced process do
  void take_rung(Fault fault);
  NodePlace place_of(NodeId node) const;
  NodeId end_to_blame(NodeId reporter) const;
  void vacate();
  void house();
  std::optional<NodeId> taker_for(NodeId lost) const;
  bool waits_unused(NodeId node) const;
  void renew();
  void renew_the_rest();
  bool holds_state(Rank rank) const;
  void restart(const std::string& because);
  void clear_for_restart(const std::string& because);
  void end_worker(WorkerId worker, const std::string& because);

  // membership_elastic.cc: how large the world is
  uint32_t unit_ranks() const;
  uint32_t replicas_of(size_t units) const;
  uint32_t replicas() const;
  void start_elastic();
  std::vector<Unit> units() const;
  ElasticView elastic_view(const std::vector<Unit>& all) const;
  void consider_size();
  void ask_policy(const ElasticView& view);
  uint32_t most_fed() const;
  void pause();
  bool is_plain() const;
  bool begins_again();
  void resize();
  uint32_t most_replicas(const std::vector<Unit>& all) const;
  std::vector<Unit> choose(const std::vector<Unit>& all, uint32_t replicas) const;
  std::vector<Slot> slots_for(const std::vector<Unit>& chosen) const;
  std::vector<NodeId> who_would_stay() const;
  const char* why_not_now(const std::vector<Unit>& chosen) const;
  std::optional<std::vector<Unit>> choose_for_shards(std::vector<Unit> all, uint32_t replicas) const;
  const char* why_no_shards(const std::vector<Unit>& chosen) const;
  void settle(const std::vector<Unit>& chosen);
  void resize_formed();
  void part_from_leavers();
  bool gives_up_growth(Rank rank, const std::string& what);

  // small helpers
  bool alive(const Member& member) const;
  void take(WorkerId id, Rank rank, Origin origin);
  void retire(WorkerId id);
  WorkerId spawn(NodeId node, bool spare, const std::string& because);
  void kill(WorkerId id, const std::string& because);
  void fence(WorkerId id, const std::string& because);
  Step current_step() const;
  void journal(const char* event, const std::string& because, std::vector<Field> fields = {});
  void say(const char* event, const std::string& because, std::vector<Field> fields = {});
  void emit(Effect effect) { effects_.push_back(std::move(effect)); }

  MembershipConfig config_;
  RecoveryLadder ladder_;
  Phase phase_ = Phase::kWaiting;
  Cause cause_ = Cause::kStart;
  std::string because_;       // of this gathering
  uint32_t restarts_ = 0;     // see Prepare::restarts
  bool after_fault_ = false;  // the next generation is
  Version version_ = 0;       // the floor: the newest announced verdict
  Version progress_ = 0;      // the newest committed step that we heard of
  Holdings holdings_;

  std::map<NodeId, NodeEndpoint> nodes_;
  Roster roster_;
  Placement placement_;
  std::string node_loss_;  // why ranks are homeless
  Time homeless_since_{};
  bool ever_formed_ = false;
  std::set<NodeId> bad_nodes_;          // until they come anew they get no ranks as long as there is another node
  std::optional<NodeId> leaving_;       // its ranks move once the verdict is out
  std::set<WorkerId> outdated_;         // processes that a restart with state has yet to replace
  bool renewal_due_ = false;            // some of them go once the verdict is out
  std::map<NodeId, int> link_reports_;  // broken connections that ranks of a node told of since the last progress

  // An elastic job's size.
  std::optional<ElasticPolicy> elastic_;
  struct Resize {
    uint32_t replicas = 0;
    bool forced = false;
    std::string because;
  };
  std::optional<Resize> resize_;  // decided, and not carried out yet
  struct SizeView {
    ElasticView elastic;
    bool recoverable = false;  // all survivors are
  };
  std::optional<SizeView> size_view_;  // as things stand; nothing: it has to be looked at again
  bool pausing_ = false;               // members were asked to pause for it
  std::vector<NodeId> stay_;           // as they were told then
  Time paused_at_{};                   // the newest of those that did
  std::optional<Time> postponed_at_;
  bool lacks_shards_ = false;              // the last change was postponed, and none was carried out since
  std::map<NodeId, int> growth_failures_;  // since a generation formed with ranks on that node
  struct Leaving {
    std::string because;
    Time by{};
  };
  std::map<NodeId, Leaving> leaving_nodes_;
  std::optional<Resize> resized_;     // carried out, and not formed yet
  uint32_t formed_replicas_ = 0;      // of the generation that formed last
  uint32_t useful_ranks_ = 0;         // 0: not known
  std::vector<uint32_t> even_sizes_;  // see MostUseful::sizes
  std::string stays_because_;         // journalled last, at
  Time stays_said_at_{-std::chrono::hours(1)};
  std::optional<Time> enough_since_;  // nodes to begin with

  Round round_;                            // the newest that was prepared
  std::optional<Decide> decided_;          // over the generation before
  std::optional<Disagreement> suspected_;  // without a majority: the redo will tell

  Time now_{};
  Time sent_at_{};  // of the last Seal, Prepare, Activate or Release, or of the last answer
  Time prepared_at_{};
  Time look_at_members_{};  // who has not answered Prepare by then gets a deadline of its own
  Effects effects_;
};

}  // namespace keepstep::brain
