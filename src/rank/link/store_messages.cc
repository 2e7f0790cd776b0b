#include "rank/link/store_messages.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace keepstep::rank {
namespace {

// In hexadecimal twice that; with the largest key it is well within a packet.
constexpr size_t kInlineBytes = size_t{48} << 10;

Status carry(const std::string& value, StoreMessage& message) {
  if (value.size() <= kInlineBytes) {
    message.body["value"] = absl::BytesToHexString(value);
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("keepstep-store", value.size()));
  std::memcpy(memory.data(), value.data(), value.size());
  message.body["beside"] = value.size();
  message.beside = std::move(memory);
  return absl::OkStatus();
}

}  // namespace

StatusOr<StoreMessage> store_request(uint64_t id, const std::string& op, const std::string& key,
                                     const std::string& value) {
  if (key.size() > kMaxStoreKeyBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("store: a key of %d bytes ('%s...'); %d is the most", key.size(),
                                                      key.substr(0, 100), kMaxStoreKeyBytes));
  }
  if (value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("store: the value of '%s' has %d bytes, %d is the most; send larger things through a process "
                        "group",
                        key, value.size(), kMaxStoreValueBytes));
  }
  StoreMessage message{{{"id", id}, {"op", op}, {"key", key}}, std::nullopt};
  if (Status status = carry(value, message); !status.ok()) {
    return Status(status.code(),
                  absl::StrFormat("store: the value of '%s', %d bytes: %s", key, value.size(), status.message()));
  }
  return message;
}

StoreMessage store_answer(uint64_t id, bool ok, const std::string& value) {
  StoreMessage message{{{"id", id}, {"ok", ok}}, std::nullopt};
  if (const Status status = carry(value, message); !status.ok()) {
    message.body["value"] = "";
    message.body["error"] = absl::StrFormat("store: the agent has a value of %d bytes and cannot hand it on: %s",
                                            value.size(), status.message());
  }
  return message;
}

StatusOr<std::string> store_value(const nlohmann::json& body, std::vector<Fd> fds) {
  if (!body.contains("beside")) {
    const auto& text = body.at("value").get_ref<const std::string&>();
    if (text.size() % 2 != 0 || !std::ranges::all_of(text, absl::ascii_isxdigit)) {
      return absl::InvalidArgumentError("a value that is not hexadecimal");
    }
    return absl::HexStringToBytes(text);
  }
  const auto bytes = body.at("beside").get<uint64_t>();
  if (bytes == 0 || bytes > kMaxStoreValueBytes || fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a value of %d bytes with %d descriptors beside it", bytes, fds.size()));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::attach(std::move(fds.front()), bytes));
  return std::string(reinterpret_cast<const char*>(memory.data()), bytes);
}

StoreReply store_reply(const nlohmann::json& body, std::vector<Fd> fds) {
  StoreReply reply{.answered = true, .ok = body.value("ok", false), .error = body.value("error", "")};
  StatusOr<std::string> value = store_value(body, std::move(fds));
  if (value.ok()) {
    reply.value = *std::move(value);
  } else {
    reply.error = std::string(value.status().message());
  }
  return reply;
}

}  // namespace keepstep::rank
