// The communicator's sizes as messages carry them: decided by the agent, the same on all ranks.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/communicator.h"

namespace keepstep::rank {

inline nlohmann::json to_json(const comm::CommConfig& config) {
  return {{"max_world", config.max_world},
          {"max_local", config.max_local},
          {"groups", config.groups},
          {"slot_bytes", config.slot_bytes},
          {"group_slot_bytes", config.group_slot_bytes},
          {"ring_bytes", config.ring_bytes}};
}

// Throws nlohmann::json::exception for a body without its parts.
inline comm::CommConfig comm_config_from(const nlohmann::json& json) {
  return {.max_world = json.at("max_world"),
          .max_local = json.at("max_local"),
          .groups = json.at("groups"),
          .slot_bytes = json.at("slot_bytes"),
          .group_slot_bytes = json.at("group_slot_bytes"),
          .ring_bytes = json.at("ring_bytes")};
}

}  // namespace keepstep::rank
