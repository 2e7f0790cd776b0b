// The options of `keepstep node`, which ranks call that `keepstep run` did not start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/nodes/store_nodes.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

struct NodeOptions {
  std::string job;
  std::optional<agent::StoreNodes> nodes;  // std::nullopt: the job has one
  std::vector<std::string> mistakes;
};

NodeOptions parse_node(const std::vector<std::string>& args, const Environ& environ);

}  // namespace keepstep::cli
