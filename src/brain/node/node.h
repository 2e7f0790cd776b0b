// The agent's brain: what a node does with the coordinator's effects and with the actions of its workers. Pure;
// src/agent is its shell, and the random schedules run it against membership.h.
//
// It owns which worker holds which rank here, which generation the node is in, which one is sealed, and how long the
// memory of a dead worker is kept. What outlives what:
//   a worker's page and capsules   outlive its process, until a later generation that is not sealed formed without a
//                                  rank for it. A worker that never had a rank leaves nothing that anybody could need
//   a generation's page            until the one after the next is prepared: a verdict over it may come that late
//   vaults (copies of shards)      outlive ranks, until their version turns out not to count (Forget::beyond), their
//                                  sharding was replaced by one in which a step was done (Forget::before), or nobody
//                                  asked for them in three generations (ForgetUnused)
//   copies of others' capsules     pass from a dead worker to its successor, but not into another world
// All of it ends with the agent.
//
// The coordinator's effects may arrive twice, late and out of order. Any that are not newer than the newest Seal are
// dropped.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "brain/membership/membership_messages.h"

namespace keepstep::brain {

// ---- events: orders of the coordinator, and what workers of this node do ------------------------------------------

// The generation formed: a rank here committed a step in it. (Formed reports the same, but a rank of another node may
// have sent it.)
struct FormedByCommit {
  Identity identity;
};
// A step was done in this sharding: every shard has its copies.
struct Settled {
  uint32_t sharding = 0;
};
// A program that may never ask for a rank (--no-python) asked: it can be told the rank it has.
struct Attached {
  WorkerId worker = kNoWorker;
};
// A member left the old step: its answer to Prepare.
struct MemberReady {
  Identity identity;
  MemberState member;
};
// The user's limit on how long this worker may take to leave an interrupted step.
struct LeaveLimit {
  WorkerId worker = kNoWorker;
  Time limit{};
};

// WorkerDied with signal -1: the worker lost its life mutex. Otherwise WorkerDied and WorkerExited mean that its end is
// certain, or that it never started (pid 0).
using NodeEvent = std::variant<Spawn, Seal, Decide, Prepare, Activate, Kill, Pause, Release, EndJob, WorkerDied,
                               WorkerExited, MemberReady, Formed, FormedByCommit, Settled, Attached, LeaveLimit, Tick>;

// ---- effects ------------------------------------------------------------------------------------------------------

// To the coordinator.
struct Tell {
  Event event;
};
struct StartWorker {
  Spawn spawn;
};
struct Holder {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  bool operator==(const Holder&) const = default;
};
// Mark the generation's page, seal the words of `holders`, read them, and wake all waiters. Then send the coordinator a
// brain::Sealed, with the copies and parity stored here. Safe to repeat. `unknown`: the node never heard of this
// generation: it has no page and no words here, but the copies and parity stored here still count.
struct SealWords {
  Identity identity;
  std::vector<Holder> holders;
  bool unknown = false;
};
// Tell these living members to leave the step.
struct Interrupt {
  Identity identity;
  std::vector<WorkerId> workers;
  std::string because;
};
// Write the verdict into that generation's page.
struct Announce {
  Decide decide;
};
// Make the generation's page. Keep the one of `before`, and free older ones.
struct Begin {
  Prepare prepare;
  Identity before;
};
// `to` takes over the capsules of `from`, which held its rank, and with `copies` also those that it kept for others.
struct Inherit {
  WorkerId from = kNoWorker;
  WorkerId to = kNoWorker;
  bool copies = false;
};
// A worker with a rank in another world forgets which capsules of others it kept.
struct ForgetCapsules {
  WorkerId worker = kNoWorker;
};
// Tell a living member its rank. `entry` is how it got there: "start", "resize", "recovery", "joined" or "replacement".
struct Assign {
  Member member;
  const char* entry = "";
};
// Training continues from `activate`: tell these members. `first`: not a repetition.
struct GoOn {
  Activate activate;
  std::vector<WorkerId> workers;
  bool first = false;
};
// In the vaults: versions beyond `beyond`, and shardings before `before`.
struct Forget {
  std::optional<Version> beyond;
  uint32_t before = 0;
};
struct ForgetUnused {};
// Tell these living members.
struct TellPause {
  Pause pause;
  std::vector<WorkerId> workers;
};
// Tell these living members. `wake`: also wake every rank that waits for another.
struct TellRelease {
  Release release;
  std::vector<WorkerId> workers;
  bool wake = false;
};
// Sent when the node first learns of it.
struct HasFormed {
  Identity identity;
};
// SIGKILL; the worker's end arrives as an event. `because` is for the journal; empty if the coordinator or the worker's
// own death asked for it.
struct KillProcess {
  WorkerId worker = kNoWorker;
  std::string because;
};
// What the worker left in memory is no longer needed.
struct FreeMemory {
  WorkerId worker = kNoWorker;
};
// The job is over: nothing more of this generation may commit. `identity` of generation 0: there is none.
struct Close {
  EndJob end;
  Identity identity;
  std::vector<Holder> holders;
  std::vector<WorkerId> ranks;   // living workers that have or had a rank: they may need to clean up
  std::vector<WorkerId> spares;  // living workers that never had one
};

using NodeEffect =
    std::variant<Tell, StartWorker, SealWords, Interrupt, Announce, Begin, Inherit, ForgetCapsules, Assign, GoOn,
                 Forget, ForgetUnused, TellPause, TellRelease, HasFormed, KillProcess, FreeMemory, Close>;
using NodeEffects = std::vector<NodeEffect>;

class NodeBrain {
 public:
  explicit NodeBrain(NodeId node) : node_(node) {}
  // Effects in the order in which the shell must carry them out. Each is safe to carry out twice.
  NodeEffects step(const NodeEvent& event, Time now);

  // For the shell. The newest generation that was prepared; null if there is none.
  const Prepare* prepared() const { return prepared_ ? &*prepared_ : nullptr; }
  Identity identity() const { return prepared_ ? prepared_->identity : Identity{}; }
  bool active() const { return active_; }  // the newest generation was activated
  bool sealed() const { return identity() <= sealed_; }
  // What a worker reports about a generation with ranks of another world is ignored.
  bool outdated(Identity identity) const { return identity < resized_; }

  struct Worker {
    std::optional<Rank> rank;  // in the newest generation
    bool had_rank = false;     // ever
    bool dead = false;         // noticed; it is ending, or has ended
    bool ready = false;        // it answered the newest Prepare
    std::optional<Event> end;  // as reported to the coordinator: its end is certain
    Time limit{};              // see LeaveLimit; 0: none
    std::optional<Time> leaving_since;
  };
  using Workers = std::map<WorkerId, Worker>;
  // Null if the worker is not known, or nothing is left of it.
  const Worker* find(WorkerId id) const;
  // The members of the newest generation whose death was not noticed, by rank.
  std::vector<WorkerId> living_members() const;

 private:
  void on(const Spawn& event);
  void on(const Seal& event);
  void on(const Decide& event);
  void on(const Prepare& event);
  void on(const Activate& event);
  void on(const Kill& event);
  void on(const Pause& event);
  void on(const Release& event);
  void on(const EndJob& event);
  void on(const WorkerDied& event);
  void on(const WorkerExited& event);
  void on(const MemberReady& event);
  void on(const Formed& event);
  void on(const FormedByCommit& event);
  void on(const Settled& event);
  void on(const Attached& event);
  void on(const LeaveLimit& event);
  void on(const Tick& event);

  void begin(const Prepare& prepare);
  void inherit(const Member& member, bool resized);
  void assign(const Member& member);
  const char* entry_of(const Member& member) const;
  void formed(Identity identity);
  void tell_ready();
  void ended(WorkerId id, const Event& how);
  Workers::iterator give_back(Workers::iterator worker);  // returns the next one
  bool goes_on(Identity identity) const { return identity == this->identity() && identity > sealed_; }
  bool knows_all_members() const;
  std::vector<Holder> holders() const;
  void emit(NodeEffect effect) { effects_.push_back(std::move(effect)); }

  const NodeId node_;
  Workers workers_;
  std::set<WorkerId> gone_;                          // nothing is left of them
  std::optional<Prepare> prepared_;                  // only those of its members that are on this node
  std::vector<std::pair<MemberState, Time>> ready_;  // not reported to the coordinator yet, and since when
  Identity before_;                                  // the generation before prepared_
  Identity sealed_;                                  // the newest
  Identity formed_;                                  // the newest
  Identity resized_;                                 // the newest whose world differs from the previous one's
  uint32_t functions_ = 0;                           // recoverable functions that are over
  bool active_ = false;
  bool over_ = false;  // the job
  Time now_{};
  NodeEffects effects_;
};

}  // namespace keepstep::brain
