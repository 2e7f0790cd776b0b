// The options of `keepstep run`, in one table, from which the parser, --help and the reference page are made.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Limits shared by the table's texts and the checks.
inline constexpr int kMaxRanksPerNode =
    63;  // a packet of fds holds the memory of each member and the generation's page
inline constexpr int kMaxRanksOfSeveral = kMaxRanksPerNode - 1;  // with several nodes: also the listening socket
inline constexpr int kMaxNodes = 1024;
inline constexpr int kMaxSpares = 64;
inline constexpr int kEndpointPort = 29400;  // torchrun's, for --rdzv-endpoint
inline constexpr int kMasterPort = 29500;    // torchrun's, for --master-addr
inline constexpr double kMaxSeconds = 86400;
inline constexpr int kMaxNodeFaults = 1000;
inline constexpr const char* kDefaultLogDir = "keepstep-logs";

struct RunOption {
  enum class Support {
    kFull,
    kNoEffect,  // torchrun's; accepted but ignored, with `bounds` as a warning
    kRefused,   // torchrun's; ignoring it would change the job, so it is an error with `bounds` as its message
  };
  std::string group;
  std::string name;      // with hyphens; the spelling with underscores is accepted too
  char short_name = 0;   // 0: none
  std::string value;     // placeholder for the value in --help; empty: a flag
  std::string meaning;   // one or two sentences, with the unit
  std::string standard;  // the default, for people; empty: none
  std::string bounds;    // which values are accepted; or why the option has no effect, and what to do
  bool pet = false;      // $PET_NAME is used if the option is not given, as in torchrun
  bool repeatable = false;
  Support support = Support::kFull;

  bool is_flag() const { return value.empty(); }
  std::string spelled() const { return "--" + name; }
  std::string underscored() const;  // "--nproc_per_node"; the same as spelled() if it has no hyphens
  std::string environment() const;  // "PET_NPROC_PER_NODE"
};

// In the order of --help; each group is contiguous.
const std::vector<RunOption>& run_options_table();

// The output of `keepstep run --help`, wrapped at 100 columns.
std::string run_help();

// The same as a Markdown page, for docs/reference.
std::string run_help_markdown();

}  // namespace keepstep::cli
