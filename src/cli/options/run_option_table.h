// The options of `keepstep run`, in one table: parser, --help and the reference page are made from it.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Bounds that the table's texts and the checks share.
inline constexpr int kMaxRanksPerNode =
    63;  // a packet of fds holds the memory of each member and the generation's page
inline constexpr int kMaxRanksOfSeveral = kMaxRanksPerNode - 1;  // and the listening socket, with several nodes
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
    kNoEffect,  // torchrun's; taken and left alone, with a warning that says `bounds`
    kRefused,   // torchrun's; its effect would be missed, so it is an error that says `bounds`
  };
  std::string group;
  std::string name;      // with hyphens; the spelling with underscores is known too
  char short_name = 0;   // 0: none
  std::string value;     // what stands for the value in --help; empty: a flag
  std::string meaning;   // one or two sentences, with the unit
  std::string standard;  // the default, as one reads it; empty: none
  std::string bounds;    // which values are taken; or why the option has no effect, and what to do
  bool pet = false;      // $PET_NAME is used where the option is not given, as torchrun does
  bool repeatable = false;
  Support support = Support::kFull;

  bool is_flag() const { return value.empty(); }
  std::string spelled() const { return "--" + name; }
  std::string underscored() const;  // "--nproc_per_node"; the same as spelled() if there is nothing to join
  std::string environment() const;  // "PET_NPROC_PER_NODE"
};

// In the order of --help: groups are contiguous.
const std::vector<RunOption>& run_options_table();

// What `keepstep run --help` prints, wrapped at 100 columns.
std::string run_help();

// docs/reference: the same as a Markdown page.
std::string run_help_markdown();

}  // namespace keepstep::cli
