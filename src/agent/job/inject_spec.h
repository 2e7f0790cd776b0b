// A fault to inject, as given to `keepstep run --inject` and `keepstep inject`: KIND[:KEY=VALUE,...].
//
//   kill:rank=2,step=20,phase=backward          SIGKILL in the middle of an all-reduce of step 20's backward
//   exception:rank=any,step=7,phase=forward     the first rank to get there raises an exception
//   segv:rank=1,step=30,phase=hydrate,on=spare  only in a worker that started as a spare
//   slow:rank=3,step=10,factor=4                from step 10 on this process takes 4 times as long to compute
//   kill:rank=any,step=1,phase=update,probability=0.01,seed=7,times=20   at random, 20 times at most
//
// Pure. This is the only parser. The launcher uses it to refuse mistakes before anything starts, and the agent of a
// running job to refuse bad requests at its control door; workers get the parsed fields (`for_worker`).
// docs/reference/inject.md says what each kind does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "messages/rank_messages.h"

namespace keepstep::agent {

enum class InjectKind {
  kKill,
  kSegv,
  kException,
  kExit,
  kStop,
  kGil,
  kLoop,
  kDeadlock,
  kOom,
  kSlow,
  kFlip,
  kAgentKill,
  kAgentStop,
  kLinkDrop,
  kLinkDelay,
  kDiskFull,
};
enum class InjectPhase {
  kForward,
  kBackward,
  kAllreduce,
  kBeforeVote,
  kAfterVote,
  kUpdate,
  kBetween,
  kHydrate,
  kRecovery,
  kBuild,
};

struct InjectSpec {
  InjectKind kind = InjectKind::kKill;
  std::optional<uint32_t> rank;       // unset: the first rank to get there
  std::optional<uint64_t> step;       // >= 1; unset (keepstep inject only): at the next opportunity
  std::optional<InjectPhase> phase;   // unset: the kind's default, see default_phase
  bool on_spare = false;              // only in a worker that started as a spare
  std::optional<double> probability;  // (0, 1]: at each step from `step` on, for each rank independently
  std::optional<uint64_t> seed;       // of `probability` and of what `flip` flips; unset: the job's
  std::optional<uint64_t> times;      // how many times in the whole job; unset: 1 (slow: every step from then on)
  std::optional<double> seconds;  // stop, gil, loop, agent-stop, disk-full: how long it lasts; slow: added to each step
  std::optional<double> factor;   // slow: multiplies the time to compute
  std::optional<uint64_t> ms;     // link-delay
  std::optional<uint64_t> mib;    // oom: how much it allocates at most
  std::string what;               // flip: "gradient" or "parameter"; oom: "error" or "kill"
  std::string text;               // as given
};

// kRun: for `--inject`, where a fault must name its rank and step. kNow: for a job that runs, where the default is the
// first rank to get there, now.
enum class InjectFor { kRun, kNow };

const char* name(InjectKind kind);
const char* name(InjectPhase phase);
// Whether a C++ program can carry it out itself (rank/checks/fault_injector.h).
bool for_programs(InjectKind kind);
// "forward, backward, ...": for messages and --help.
std::string program_faults();
std::string inject_kinds();
std::string inject_phases();

// Whether the agent does it to itself or to its files, instead of a rank.
bool by_agent(InjectKind kind);
// The signal that causes it from outside, whatever the process is doing; 0 if the process has to do it itself.
int signal_of(InjectKind kind);
// Where it happens if the fault does not say.
InjectPhase default_phase(const InjectSpec& spec);

// INVALID_ARGUMENT names every mistake in `text` (separated by "; ") and its correction.
StatusOr<InjectSpec> parse_inject(std::string_view text, InjectFor for_what = InjectFor::kRun);

// What a worker needs to carry it out.
messages::Fault for_worker(const InjectSpec& spec, const std::string& key, bool late);

}  // namespace keepstep::agent
