// A question to the Store and its answer, as messages carry them (docs/design/wire_worker.md). Bytes go as hexadecimal.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace keepstep::worker {

struct StoreReply {
  bool answered = false;     // false: timed out, or interrupted
  bool interrupted = false;  // the generation was sealed, or the job ended
  bool ok = false;           // the agent's answer: the key was there, the condition held
  std::string value;
};

nlohmann::json store_request(uint64_t id, const std::string& op, const std::string& key, const std::string& value);
StoreReply store_reply(const nlohmann::json& body);  // throws nlohmann::json::exception for a body without its parts

}  // namespace keepstep::worker
