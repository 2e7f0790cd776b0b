// Which rung of the recovery ladder a fault takes, and when to give up (docs/design/recovery.md). Pure.
//
// 0 redo in the same process; 1 replace the process; 2 replace its node with a spare node; 3 restart all processes,
// with the state of those that hold it; 4 restart the job from version 0, if nobody holds the state any more or no
// process can be entered again; otherwise end the job. An error that comes back at the same step is a bug in the user's
// code: the job ends with the first traceback of the rank that failed first. A redo begins after the last commit, so it
// does not run again what follows that commit. There a retry hides the failure instead of fixing it, so an exception
// that comes from one place after several commits ends the job, too. Everything that a redo skipped is reported at the
// end.
//
// Budgets of a step end with its commit, not with time: a step may take longer than any window, and a fault in it comes
// back regardless. Budgets of a node end with time: a worker that died hours ago says nothing about today.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

struct LadderConfig {
  int redos_per_step = 1;         // rung 0: an exception at a step that it had already raised at ends the job
  int replacements_per_step = 3;  // rung 1: more faults than this by death, or by votes for different things, at
                                  // one step: restart all
  int links_per_step = 3;         // rung 0: more broken connections between nodes than this at one step: replace one
                                  // of the two nodes, or else restart all
  int restarts = 3;               // rungs 3 and 4 together: torchrun's --max-restarts, for the job's whole life
  int steps_in_a_row = 3;         // rung 0: exceptions at more consecutive steps than this end the job, too
  int skipped_failures = 2;       // rung 0: one exception from one place after more commits than this ends the job, too
  int faults_per_node = 3;        // rung 2: this many deaths on a node within `node_window` replace it; 0: never
  Time node_window = std::chrono::minutes(10);
};

enum class Rung { kRedo = 0, kReplace = 1, kReplaceNode = 2, kRestartWithState = 3, kRestart = 4, kEnd = 5 };
const char* name(Rung rung);

enum class FaultKind {
  kException,   // user code raised; the process is alive
  kLink,        // the connection between two nodes broke; nobody's code is at fault, and all processes are alive
  kDigests,     // the ranks' digests differ in the vote; the odd one is replaced once the sealed words identify it
  kDeath,       // the process is gone (signal, or exit code != 0)
  kNoSource,    // no clean copy of the state is left
  kPlainDeath,  // a worker without a recoverable loop died: only restarting all workers helps
};

// Whether the node of a fault could be replaced.
enum class Replaceability {
  kOnly,         // the job has no other node
  kHasRank0,     // the coordinator runs there
  kGone,         // it is lost already
  kNoSpare,      // no node is left to take its ranks
  kReplaceable,  // a spare node is waiting, and nothing rules it out
};

struct Fault {
  FaultKind kind = FaultKind::kDeath;
  Rank rank = 0;
  Step step = 0;          // the step it was in
  int exit_code = 1;      // the job's exit code if it ends because of this
  std::string what;       // one line: "rank 3 (pid 4711) was ended by SIGKILL"
  std::string traceback;  // of the user's code, may be empty
  NodeId node = 0;        // where it happened; for a broken link, the end that would have to go
  Replaceability replaceability = Replaceability::kOnly;
  bool after_commit = false;  // of an exception: `step` had been committed, so a redo does not get there again
};

// An exception that the job survived: of one type, raised by the same lines of code.
struct OutlivedFailure {
  std::string what;  // the first time
  std::string traceback;
  int steps = 0;  // the number of steps it was raised at
  Step first_step = 0;
  Step last_step = 0;
  bool skipped = false;  // the code that raised was not run again: it followed a commit
};

// "rank 1 (pid 7) failed at step 20: ValueError: x: it was raised there alone, and not by the redo"
std::string outlived_text(const OutlivedFailure& failure);

// Type and origin of an exception: the last line of a Python traceback up to its first colon, and the location of each
// frame. Empty if there are none.
std::string origin_of(const std::string& traceback);

struct LadderDecision {
  Rung rung = Rung::kEnd;
  std::string because;
  int exit_code = 0;      // for kEnd
  std::string traceback;  // for kEnd: the first traceback at that step
  NodeId node = 0;        // for kReplaceNode
};

class RecoveryLadder {
 public:
  explicit RecoveryLadder(LadderConfig config) : config_(config) {}

  // Takes one fault and picks the rung. Budgets are counted per step for rungs 0 and 1, per node and time for rung 2,
  // and per job for rungs 3 and 4. Ranks that fail together are one fault: the caller asks once per generation that it
  // interrupts. `now` never goes back.
  LadderDecision on_fault(const Fault& fault, Time now);

  // A rank on `node` voted differently from most: this is a fault of its node, while everything else continues. True if
  // it was one too many, and the node's ranks must move (`replaceability` is kReplaceable).
  bool on_digest_mismatch(NodeId node, Replaceability replaceability, Time now);

  // Training passed `version`: budgets of earlier steps are forgotten.
  void on_progress(Version version);
  // Steps are counted from 1 again, in the next recoverable function.
  void start_again();

  // What was raised and redone so far, at most kMaxOutlived of them, ordered by first occurrence.
  const std::vector<OutlivedFailure>& outlived() const { return outlived_; }
  static constexpr size_t kMaxOutlived = 32;

  // Faults on the node within the window that ends at `now`.
  int faults_on(NodeId node, Time now) const;

 private:
  struct AtStep {
    int exceptions = 0;
    int links = 0;
    int deaths = 0;
    int digests = 0;
    std::string first_what;
    std::string first_traceback;
  };
  LadderDecision on_exception(const Fault& fault);
  const OutlivedFailure* note_failure(const Fault& fault);
  LadderDecision on_link(const Fault& fault);
  LadderDecision on_digests(const Fault& fault);
  LadderDecision on_death(const Fault& fault, Time now);
  LadderDecision on_no_source(const Fault& fault);
  LadderDecision restart_or_end(const Fault& fault, const std::string& because, Rung rung);
  void note_on_node(NodeId node, Time now);

  LadderConfig config_;
  std::map<Step, AtStep> at_step_;
  std::optional<Fault> raised_;  // the newest fault, if that is an exception
  // The exception after which no clean state was left: it was raised in the update, after the vote, on all ranks.
  std::optional<Fault> spoilt_;
  struct InARow {  // exceptions at consecutive steps: code that fails after each commit
    int count = 0;
    Step last_step = 0;
    std::string first_what;
    std::string first_traceback;
  };
  InARow in_a_row_;
  std::map<NodeId, std::deque<Time>> on_node_;  // per node, its last `faults_per_node` faults
  int restarts_ = 0;
  std::vector<OutlivedFailure> outlived_;
};

}  // namespace keepstep::brain
