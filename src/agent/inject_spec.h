// A fault to inject, as given to `keepstep run --inject`: KIND:rank=R|any,step=K,phase=P[,on=spare].
//
//   kill:rank=2,step=20,phase=backward        SIGKILL in the middle of an all-reduce of step 20's backward
//   exception:rank=any,step=7,phase=forward   the first rank to get there raises
//   segv:rank=1,step=30,phase=hydrate,on=spare  only in a worker that started as a spare
//
// Pure; both the launcher (which refuses nonsense before anything starts) and the worker parse with this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep::agent {

enum class InjectKind { kKill, kSegv, kException, kExit };
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
  std::optional<uint32_t> rank;  // unset: any
  uint64_t step = 1;             // >= 1
  InjectPhase phase = InjectPhase::kForward;
  bool on_spare = false;  // only in a worker that started as a spare
  std::string text;       // as given
};

// Whether a C++ program can carry it out itself (worker/fault_injector.h).
bool for_programs(InjectKind kind);
const char* name(InjectKind kind);
const char* name(InjectPhase phase);
// "forward, backward, ...": for messages and --help.
std::string inject_kinds();
std::string inject_phases();

// INVALID_ARGUMENT names every mistake in `text` (separated by "; ") and what would be right.
StatusOr<InjectSpec> parse_inject(std::string_view text);

}  // namespace keepstep::agent
