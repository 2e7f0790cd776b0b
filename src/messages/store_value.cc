#include "messages/store_value.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace keepstep::messages {
namespace {

// Twice that in hexadecimal; together with the longest key, it easily fits in a packet.
constexpr size_t kInlineBytes = size_t{48} << 10;

Status carry(const std::string& value, StoreValue& carried, std::optional<SharedMemory>& beside) {
  if (value.size() <= kInlineBytes) {
    carried.here.bytes = value;
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("keepstep-store", value.size()));
  std::memcpy(memory.data(), value.data(), value.size());
  carried.beside = value.size();
  beside = std::move(memory);
  return absl::OkStatus();
}

}  // namespace

StatusOr<WithMemory<StoreQuestion>> store_question(uint64_t id, const std::string& op, const std::string& key,
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
  WithMemory<StoreQuestion> question{{.id = id, .op = op, .key = {key}}, std::nullopt};
  if (Status status = carry(value, question.message.value, question.beside); !status.ok()) {
    return Status(status.code(),
                  absl::StrFormat("store: the value of '%s', %d bytes: %s", key, value.size(), status.message()));
  }
  return question;
}

WithMemory<StoreAnswer> store_answer(uint64_t id, bool ok, const std::string& value) {
  WithMemory<StoreAnswer> answer{{.id = id, .ok = ok}, std::nullopt};
  if (const Status status = carry(value, answer.message.value, answer.beside); !status.ok()) {
    answer.message.error = absl::StrFormat("store: the agent has a value of %d bytes and cannot hand it on: %s",
                                           value.size(), status.message());
  }
  return answer;
}

StatusOr<std::string> value_of(const StoreValue& value, std::vector<Fd> fds) {
  if (value.beside == 0) {
    return value.here.bytes;
  }
  if (value.beside > kMaxStoreValueBytes || fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a value of %d bytes with %d descriptors beside it", value.beside, fds.size()));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::attach(std::move(fds.front()), value.beside));
  return std::string(reinterpret_cast<const char*>(memory.data()), value.beside);
}

}  // namespace keepstep::messages
