// The coordinator's brain: who is in the job, which generation it is in, and what happens after a fault. Pure.
//
// One entrance: `step(event, now)` returns the effects, in the order in which the shell must carry them out. Repeated,
// late and reordered events are harmless: each names a worker incarnation or an identity, and what is old or unknown
// is ignored. Effects may get lost on the way: `Tick` repeats what has not been answered.
//
// A generation's life:
//   gathering  every rank needs a worker that is parked (a spare, or one just spawned) or a survivor
//   forming    Prepare is out; each member unwinds, maps its peers, and answers Ready with the state it holds
//   running    Activate is out: those that are empty hydrate from those that are clean, then train
//   sealing    a member died or raised: words are sealed, the verdict follows from them (step_commit.h), then
//              gathering again
// The job ends when all members finished, when the ladder gives up, or when somebody asks.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "brain/recovery_ladder.h"
#include "brain/step_commit.h"
#include "brain/types.h"

namespace keepstep::brain {

// ---- events: what the world tells ----------------------------------------------------------------------------------

struct NodeJoined {
  NodeId node = 0;
};
// A worker attached, ran the script and waits at the first call that needs a rank.
struct WorkerParked {
  WorkerId worker = kNoWorker;
  int64_t pid = 0;
};
// The worker entered a `keepstep.recoverable` function: faults of others need not restart it.
struct WorkerRecoverable {
  WorkerId worker = kNoWorker;
};
// The worker is gone, or will be as soon as its memory is torn down (the notice may come before the exit).
struct WorkerDied {
  WorkerId worker = kNoWorker;
  int64_t pid = 0;
  int signal = 0;     // the signal that ended it; 0 if it exited, -1 if not known yet
  int exit_code = 0;  // meaningful if signal == 0
  std::string noticed_by;  // "robust mutex", "pidfd", "socket"
  std::string traceback;   // of an uncaught exception, if it said so before
};
// The worker ended by itself with exit code 0.
struct WorkerExited {
  WorkerId worker = kNoWorker;
};
// User code raised inside the recoverable function; the process lives and waits.
struct WorkerFaulted {
  WorkerId worker = kNoWorker;
  Identity identity;
  Step step = 0;  // 0: before the first step
  std::string what;
  std::string traceback;
  bool fatal = false;  // a mistake that no retry can mend (ranks protect different names): end the job
};
// Answer to Seal from one node.
struct Sealed {
  NodeId node = 0;
  Identity identity;
  std::vector<SealedWord> words;  // of that node's living members
};
// Answer to Prepare from one member: it left the old step and holds `state`.
struct Ready {
  WorkerId worker = kNoWorker;
  Identity identity;
  StateWord state;
};
// All members of the generation are clean at its version and go on.
struct Formed {
  Identity identity;
};
// A step was committed (sent now and then; for budgets and status only).
struct Progress {
  Identity identity;
  Version version = 0;
};
// The training function returned on this worker; it waits for Release.
struct WorkerFinished {
  WorkerId worker = kNoWorker;
  Identity identity;
};
struct StopRequested {
  int exit_code = 0;
  std::string because;
};
struct Tick {};

using Event = std::variant<NodeJoined, WorkerParked, WorkerRecoverable, WorkerDied, WorkerExited, WorkerFaulted, Sealed,
                           Ready, Formed, Progress, WorkerFinished, StopRequested, Tick>;

// ---- effects: what the shell must do -------------------------------------------------------------------------------

struct Spawn {
  NodeId node = 0;
  WorkerId worker = kNoWorker;
  bool spare = false;  // for names and logs only
  std::string because;
};
struct Seal {
  Identity identity;
  std::string because;
};
// The verdict over generation `identity`: survivors that had voted on `version` apply it, all others stay where they
// are. Must reach a node before the Prepare that follows it.
struct Decide {
  Identity identity;
  Verdict verdict;
};
struct Member {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  NodeId node = 0;
  bool newcomer = false;               // was not a member of the previous generation
  WorkerId previous = kNoWorker;       // newcomer: the worker that held this rank before (its capsule is taken over)
  bool operator==(const Member&) const = default;
};
struct Prepare {
  Identity identity;
  Version version = 0;
  std::vector<Member> table;  // by rank
  std::string because;
};
// Start: `targets` pull the state at `version` from `sources`, then everybody goes on. `compare`: the targets compare
// digests first and pull only what differs (at the start of a job, where `sources` is the lowest rank).
struct Activate {
  Identity identity;
  Version version = 0;
  std::vector<Rank> sources;
  std::vector<Rank> targets;
  bool compare = false;
};
struct Kill {
  WorkerId worker = kNoWorker;
  std::string because;
};
// All members finished: let them return.
struct Release {
  Identity identity;
};
// The job is over: end what still runs and exit with `exit_code`. `message` is for the user, `traceback` too.
struct EndJob {
  int exit_code = 0;
  std::string message;
  std::string traceback;
};
// One line for the journal; every decision has one, with its reason.
struct Journal {
  std::string event;
  std::string because;
  std::vector<Field> fields;
};

using Effect = std::variant<Spawn, Seal, Decide, Prepare, Activate, Kill, Release, EndJob, Journal>;
using Effects = std::vector<Effect>;

struct MembershipConfig {
  uint32_t term = 1;
  uint32_t world_size = 1;
  uint32_t spares = 0;
  LadderConfig ladder;
  Time repeat_after = std::chrono::milliseconds(500);   // unanswered Seal, Prepare
  Time interrupt_timeout = std::chrono::seconds(60);    // a member that does not leave the old step is killed
  Time start_timeout = std::chrono::seconds(600);       // a spawned worker that does not park is killed
};

class Membership {
 public:
  explicit Membership(MembershipConfig config);
  Effects step(const Event& event, Time now);

  // For status lines and tests.
  Identity identity() const { return identity_; }
  Version version() const { return version_; }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kWaiting, kGathering, kForming, kRunning, kSealing, kEnded };
  struct Worker;  // see membership.cc

  MembershipConfig config_;
  RecoveryLadder ladder_;
  Phase phase_ = Phase::kWaiting;
  Identity identity_;    // of the newest generation that was prepared
  Version version_ = 0;  // the floor: the newest announced verdict
};

}  // namespace keepstep::brain
