#include "rank/checks/fault_injector.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace keepstep::rank {
namespace {

// A worker has no current step in these phases: they fire at the first occasion at or after the named step.
constexpr std::array<std::string_view, 3> kLoosePhases = {"hydrate", "recovery", "build"};
constexpr int kExitCode = 13;

template <typename Names>
bool holds(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool carried_out_by_programs(std::string_view kind) { return holds(kProgramFaults, kind); }

std::string program_faults() {
  std::string words(kProgramFaults[0]);
  for (size_t i = 1; i < kProgramFaults.size(); ++i) {
    words.append(i + 1 < kProgramFaults.size() ? ", " : " and ").append(kProgramFaults[i]);
  }
  return words;
}

Status possible_in_a_program(const Fault& fault) {
  if (fault.probability.has_value() || fault.times.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat("the fault '%s': a C++ program does not know what '%s' means",
                                                      fault.text, fault.times.has_value() ? "times" : "probability"));
  }
  if (!carried_out_by_programs(fault.kind)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the fault '%s' cannot be injected into a C++ program, only %s can", fault.text, program_faults()));
  }
  return absl::OkStatus();
}

FaultInjector::FaultInjector(std::vector<Fault> faults, bool spare, Hooks hooks)
    : spare_(spare), hooks_(std::move(hooks)) {
  for (Fault& fault : faults) {
    if (const Status status = possible_in_a_program(fault); status.ok()) {
      waiting_.push_back(std::move(fault));
    } else {
      std::fprintf(stderr, "keepstep: %s\n", std::string(status.message()).c_str());
    }
  }
}

Status FaultInjector::at(std::string_view phase, brain::Step step, std::optional<uint32_t> rank) {
  for (size_t i = 0; i < waiting_.size();) {
    const Fault& each = waiting_[i];
    const brain::Step first = each.step.value_or(1);
    const bool now = each.late || holds(kLoosePhases, phase) ? step >= first : step == first;
    if (each.phase != phase || !now || (each.on_spare && !spare_) || (each.rank.has_value() && each.rank != rank)) {
      ++i;
      continue;
    }
    const Fault fault = each;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!hooks_.claim("inject/" + fault.key)) {
      continue;
    }
    if (fault.kind == "flip") {
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string detail, hooks_.flip(fault, step));
      hooks_.announce(fault, detail);
      continue;
    }
    hooks_.announce(fault, "");
    if (fault.kind == "exception") {
      return absl::InternalError("injected: " + fault.text);
    }
    hooks_.carry_out(fault);
  }
  return absl::OkStatus();
}

void end_this_process(const Fault& fault) {
  if (fault.kind == "exit") {
    _exit(kExitCode);
  }
  const int number = fault.kind == "segv" ? SIGSEGV : SIGKILL;
  (void)signal(number, SIG_DFL);
  kill(getpid(), number);
  while (true) {
    pause();
  }
}

}  // namespace keepstep::rank
