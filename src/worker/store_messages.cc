#include "worker/store_messages.h"

#include "absl/strings/escaping.h"

namespace keepstep::worker {

nlohmann::json store_request(uint64_t id, const std::string& op, const std::string& key, const std::string& value) {
  return {{"id", id}, {"op", op}, {"key", key}, {"value", absl::BytesToHexString(value)}};
}

StoreReply store_reply(const nlohmann::json& body) {
  return {.answered = true,
          .ok = body.value("ok", false),
          .value = absl::HexStringToBytes(body.value("value", std::string()))};
}

}  // namespace keepstep::worker
