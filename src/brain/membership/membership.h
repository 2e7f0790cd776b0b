// The coordinator's brain: who is in the job, which generation it is in, and what happens after a fault. Pure.
//
// There is one entry point: `step(event, now)` returns the effects, in the order in which the shell must carry them
// out. Repeated, late and reordered events are harmless: each names a worker incarnation or an identity, and outdated
// or unknown ones are ignored. Effects may get lost: `Tick` repeats what has not been answered.
//
// The shell must guarantee: events that answer nothing (Parked, Died, Exited, Faulted, Finished, Recoverable) arrive at
// least once; a Kill for a worker that is unknown or already dead is answered with WorkerDied again; a Prepare or
// Activate older than a Seal is dropped.
//
// A generation's life:
//   gathering  every rank needs a worker: a parked one (a spare, or one just spawned) or a survivor
//   forming    Prepare is out; each member unwinds, maps its peers, and answers Ready with the state it holds. A plain
//              script (no recoverable function) need not answer: it may do all its work here, until it exits with 0
//   running    Activate is out: the empty members hydrate from the clean ones, then train
//   sealing    a member died or raised, or the world is to change: words are sealed, the verdict follows from them
//              (step_commit.h), then gathering again
// If the job is elastic, the world grows and shrinks between two generations (sizing.h): running members pause at the
// end of a step and are sealed there, as after a fault. The job ends when all members finished or exited with 0, when
// the ladder gives up, or on request. A member that dies after Release is only reported at that end: the others may
// still be writing their last files. Members that are released and park again have entered another recoverable
// function: once all living ones have, the job starts again with them, at version 0 (docs/design/functions.md).
//
// This class handles the events and picks the rung that each fault takes. The facts are in the Job. Its parts decide
// the rest: what each phase does (phases.h), who is late (deadlines.h), which node goes and which takes its place
// (node_replacement.h), who is corrupt (corruption.h), how all processes are replaced (renewal.h), how large the job is
// (sizing.h), which workers are started (staffing.h).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/ladder/recovery_ladder.h"
#include "brain/membership/corruption.h"
#include "brain/membership/deadlines.h"
#include "brain/membership/job.h"
#include "brain/membership/membership_messages.h"
#include "brain/membership/node_replacement.h"
#include "brain/membership/phases.h"
#include "brain/membership/renewal.h"
#include "brain/membership/sizing.h"

namespace keepstep::brain {

class Membership {
 public:
  explicit Membership(MembershipConfig config);
  Effects step(const Event& event, Time now);

  // For status lines and tests.
  Identity identity() const { return job_.round.identity(); }
  Version version() const { return job_.version; }
  bool ended() const { return job_.phase == Phase::kEnded; }
  size_t known_workers() const { return job_.roster.size(); }

 private:
  using Slot = Placement::Slot;
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
  void on(const UsefulWorlds& event);
  void on(const Saved& event);
  void on(const Tick& event);

  void consider_size();

  // membership_faults.cc: something died or broke; which rung it takes
  void member_died(Rank rank, bool recoverable, int exit_code, const std::string& what, const std::string& traceback);
  void member_left(Rank rank, bool recoverable, const std::string& what);
  void died_late(const std::vector<Rank>& ranks, int exit_code, const std::string& what, const std::string& traceback);
  void candidate_lost(const Worker& worker, bool counts, int exit_code, const std::string& what,
                      const std::string& traceback);
  void note_fault(const WorkerDied& event, const Worker& worker, const std::string& because);
  void confirm_exit(WorkerId worker);
  void take_rung(Fault fault);
  bool gives_up_growth(Rank rank, const std::string& what);
  void take_found();  // the rungs of faults that the phases found

  Job job_;
  RecoveryLadder ladder_;
  Deadlines deadlines_;
  NodeReplacement replacement_;
  Corruption corruption_;
  Renewal renewal_;
  std::optional<Sizing> sizing_;  // of an elastic job
  Phases phases_;
};

}  // namespace keepstep::brain
