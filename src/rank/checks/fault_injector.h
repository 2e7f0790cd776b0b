// Injected faults (`keepstep run --inject`) in a C++ program: carried out at named phases of a step. What
// python/keepstep/_inject.py is for Python.
//
// One thread. The launcher has checked the faults already.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "brain/types.h"
#include "messages/rank_messages.h"

namespace keepstep::rank {

// Kinds of faults that a C++ program can carry out itself.
inline constexpr std::array<std::string_view, 5> kProgramFaults = {"kill", "segv", "exception", "exit", "flip"};
bool carried_out_by_programs(std::string_view kind);
// "kill, segv, ... and flip": for messages.
std::string program_faults();

using messages::Fault;

// INVALID_ARGUMENT: one that a C++ program cannot carry out.
Status possible_in_a_program(const Fault& fault);

class FaultInjector {
 public:
  struct Hooks {
    // True for the first worker of the whole job that asks for `key`.
    std::function<bool(const std::string& key)> claim;
    // It is carried out now; `detail`: what of it chance decided.
    std::function<void(const Fault& fault, const std::string& detail)> announce;
    std::function<void(const Fault& fault)> carry_out;  // what ends this process
    // Flips a bit of what `fault` names and says which.
    std::function<StatusOr<std::string>(const Fault& fault, brain::Step step)> flip;
  };

  // `faults`: the welcome's. What a program cannot carry out is said on standard error.
  FaultInjector(std::vector<Fault> faults, bool spare, Hooks hooks);

  // Carries out what is due at `phase` of `step`, each fault once in the whole job. `rank`: this worker's, if it has
  // one. INTERNAL: an exception was injected. INVALID_ARGUMENT: what is to be flipped is not there.
  Status at(std::string_view phase, brain::Step step, std::optional<uint32_t> rank);

 private:
  bool spare_;
  Hooks hooks_;
  std::vector<Fault> waiting_;
};

// Ends this process as `fault` says.
void end_this_process(const Fault& fault);

}  // namespace keepstep::rank
