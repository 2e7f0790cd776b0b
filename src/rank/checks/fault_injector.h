// Injected faults (`keepstep run --inject`) in a C++ program: carried out at named phases of a step. What
// python/keepstep/_inject.py is for Python.
//
// One thread. The launcher has checked the faults already.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::rank {

// Kinds of faults that a C++ program can carry out itself.
inline constexpr std::array<std::string_view, 5> kProgramFaults = {"kill", "segv", "exception", "exit", "flip"};
bool carried_out_by_programs(std::string_view kind);
// "kill, segv, ... and flip": for messages.
std::string program_faults();

struct InjectedFault {
  std::string key;   // tells the faults of a job apart
  std::string text;  // as given
  std::string kind;
  std::string phase;
  std::optional<uint32_t> rank;  // unset: any
  brain::Step step = 1;
  bool on_spare = false;
  bool late = false;             // came while the job ran: a step that is past means the next one
  std::string what;              // flip: "gradient" or "parameter"
  std::optional<uint64_t> seed;  // of what is flipped; unset: the job's
};

// One of the welcome's list (docs/design/wire_worker.md): an object with `key`, `text`, `kind`, `phase`, and where it
// has them `rank`, `step`, `on_spare`, `late`, `what`, `seed`. INVALID_ARGUMENT: it is none, or one that a C++ program
// cannot carry out.
StatusOr<InjectedFault> parse_injected_fault(const nlohmann::json& fault);

class FaultInjector {
 public:
  struct Hooks {
    // True for the first worker of the whole job that asks for `key`.
    std::function<bool(const std::string& key)> claim;
    // It is carried out now; `detail`: what of it chance decided.
    std::function<void(const InjectedFault& fault, const std::string& detail)> announce;
    std::function<void(const InjectedFault& fault)> carry_out;  // what ends this process
    // Flips a bit of what `fault` names and says which.
    std::function<StatusOr<std::string>(const InjectedFault& fault, brain::Step step)> flip;
  };

  // `faults`: the welcome's list. What is no fault is said on standard error.
  FaultInjector(const nlohmann::json& faults, bool spare, Hooks hooks);

  // Carries out what is due at `phase` of `step`, each fault once in the whole job. `rank`: this worker's, if it has
  // one. INTERNAL: an exception was injected. INVALID_ARGUMENT: what is to be flipped is not there.
  Status at(std::string_view phase, brain::Step step, std::optional<uint32_t> rank);

 private:
  bool spare_;
  Hooks hooks_;
  std::vector<InjectedFault> waiting_;
};

// Ends this process as `fault` says.
void end_this_process(const InjectedFault& fault);

}  // namespace keepstep::rank
