// Injected faults (`keepstep run --inject`) in a C++ program, carried out at named phases of a step. The C++
// counterpart of python/keepstep/_inject.py.
//
// One thread. The launcher has already checked the faults.
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

// INVALID_ARGUMENT: a C++ program cannot carry out this fault.
Status possible_in_a_program(const Fault& fault);

class FaultInjector {
 public:
  struct Hooks {
    // True for the first worker of the whole job that asks for `key`.
    std::function<bool(const std::string& key)> claim;
    // The fault is about to be carried out; `detail`: what was chosen at random.
    std::function<void(const Fault& fault, const std::string& detail)> announce;
    std::function<void(const Fault& fault)> carry_out;  // ends this process
    // Flips a bit in the memory that `fault` names, and returns its place.
    std::function<StatusOr<std::string>(const Fault& fault, brain::Step step)> flip;
  };

  // `faults`: from the welcome. Those that a program cannot carry out are reported on standard error.
  FaultInjector(std::vector<Fault> faults, bool spare, Hooks hooks);

  // Carries out the faults that are due at `phase` of `step`, each once in the whole job. `rank`: this worker's, if it
  // has one. INTERNAL: an exception was injected. INVALID_ARGUMENT: the memory to flip a bit in does not exist.
  Status at(std::string_view phase, brain::Step step, std::optional<uint32_t> rank);

 private:
  bool spare_;
  Hooks hooks_;
  std::vector<Fault> waiting_;
};

// Ends this process the way `fault` asks for.
void end_this_process(const Fault& fault);

}  // namespace keepstep::rank
