// Stacks of processes as values: parsed from py-spy's output, grouped, written as text. Pure.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace keepstep::agent {

struct StackFrame {
  std::string function;
  std::string file;
  int64_t line = 0;  // 0 if unknown (a native frame)
  bool operator==(const StackFrame&) const = default;
};

struct ThreadStack {
  std::string name;
  int64_t os_id = 0;
  bool holds_gil = false;
  std::vector<StackFrame> frames;  // innermost first
};

// What one process was doing, or why that is unknown.
struct ProcessStacks {
  pid_t pid = 0;
  char state = '?';                  // of the process, from /proc: 'R', 'S', 'T' (stopped), ...
  std::string error;                 // if empty, `threads` is complete
  std::string note;                  // about the stacks: "without native frames: ..."
  std::vector<ThreadStack> threads;  // the main thread first
};

// From `py-spy dump --json`. INVALID_ARGUMENT for anything else.
StatusOr<std::vector<ThreadStack>> parse_stacks(std::string_view json, pid_t pid);

// What the job knows of a process besides its stacks.
struct RankFacts {
  std::optional<uint32_t> rank;  // unset for a spare, or a worker that starts
  uint32_t worker = 0;
  uint64_t step = 0;  // its current step; 0 if unknown
  std::string doing;  // "all_reduce #4711"; empty if unknown
};

struct RankStacks {
  RankFacts facts;
  ProcessStacks stacks;
};

// Processes that agree in what the job knows (what they are doing, in which step) and in their main thread's frames.
struct StackGroup {
  std::vector<size_t> members;  // indices, ascending
  std::string headline;         // "3 ranks (0, 1, 3) in all_reduce #4711 of step 118"
};
// Groups with a rank first. The largest group is last, because one usually looks for a rank that is alone.
std::vector<StackGroup> group_stacks(const std::vector<RankStacks>& ranks);

// "all_reduce", "__next__ (torch/utils/data/dataloader.py:733)", plus "called by" the innermost frame of the user's own
// code if that is another frame.
std::string place_of(const std::vector<StackFrame>& frames);

// All groups, each with its headline, and the frames of its first member: main thread, then the others.
std::string stacks_as_text(const std::vector<RankStacks>& ranks);

nlohmann::json to_json(const RankStacks& rank);
// Throws nlohmann's exceptions if a field is missing or has another type.
RankStacks rank_stacks_from(const nlohmann::json& body);

}  // namespace keepstep::agent
