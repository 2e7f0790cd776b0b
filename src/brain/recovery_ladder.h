// Which rung of the recovery ladder a fault takes, and when to give up (design section 11). Pure.
//
// 0 redo in the same process; 1 replace the process; 3 restart all processes; else end the job. (Rung 2, replacing a
// node, and rung 4 come with several nodes and durable tiers.) An error that comes back at the same step is a bug in
// the user's code: the job ends with the first traceback of the rank that failed first.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "brain/types.h"

namespace keepstep::brain {

struct LadderConfig {
  int redos_per_step = 1;         // rung 0: an exception at a step it had already raised at ends the job
  int replacements_per_step = 3;  // rung 1: more faults by death than this while at one step: restart all
  int links_per_step = 3;         // rung 0: more broken connections between nodes than this at one step: restart all
  int restarts = 3;               // rung 3: torchrun's --max-restarts
  int steps_in_a_row = 3;         // rung 0: exceptions at more consecutive steps than this end the job, too
};

enum class Rung { kRedo = 0, kReplace = 1, kRestart = 3, kEnd = 5 };
const char* name(Rung rung);

enum class FaultKind {
  kException,   // user code raised; the process lives
  kLink,        // the connection between two nodes broke; nobody's code is at fault, and all processes live
  kDeath,       // the process is gone (signal, or exit code != 0)
  kNoSource,    // no clean copy of the state is left
  kPlainDeath,  // a worker without a recoverable loop died: only a restart of all helps
};

struct Fault {
  FaultKind kind = FaultKind::kDeath;
  Rank rank = 0;
  Step step = 0;          // the step it was in
  int exit_code = 1;      // what the job should exit with, should it end because of this
  std::string what;       // one line: "rank 3 (pid 4711) was ended by SIGKILL"
  std::string traceback;  // of the user's code, may be empty
};

struct LadderDecision {
  Rung rung = Rung::kEnd;
  std::string because;
  int exit_code = 0;      // for kEnd
  std::string traceback;  // for kEnd: the first one at that step
};

class RecoveryLadder {
 public:
  explicit RecoveryLadder(LadderConfig config) : config_(config) {}

  // Takes one fault and picks the rung. Budgets are counted per step for rungs 0 and 1, per job for rung 3.
  // Ranks that fail together are one fault: the caller asks once per generation that it interrupts.
  LadderDecision on_fault(const Fault& fault);

  // Training got past `version`: budgets of earlier steps are forgotten.
  void on_progress(Version version);

 private:
  struct AtStep {
    int exceptions = 0;
    int links = 0;
    int deaths = 0;
    std::string first_what;
    std::string first_traceback;
  };
  LadderDecision on_exception(const Fault& fault);
  LadderDecision on_link(const Fault& fault);
  LadderDecision on_death(const Fault& fault);
  LadderDecision restart_or_end(const Fault& fault, const std::string& because);

  LadderConfig config_;
  std::map<Step, AtStep> at_step_;
  struct InARow {  // exceptions at consecutive steps: code that fails after each commit
    int count = 0;
    Step last_step = 0;
    std::string first_what;
    std::string first_traceback;
  };
  InARow in_a_row_;
  int restarts_ = 0;
};

}  // namespace keepstep::brain
