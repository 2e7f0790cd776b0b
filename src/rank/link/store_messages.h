// A question to the Store and its answer, as messages carry them (docs/design/wire_worker.md#the-store). Small values
// go as hexadecimal within the message, larger ones in memory whose descriptor goes beside it: a packet has 160 KiB,
// and what c10d puts into a store may have some megabytes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/status.h"

namespace keepstep::rank {

inline constexpr size_t kMaxStoreValueBytes = size_t{8} << 20;
inline constexpr size_t kMaxStoreKeyBytes = size_t{16} << 10;

struct StoreReply {
  bool answered = false;     // false: timed out, or interrupted
  bool interrupted = false;  // the generation was sealed, or the job ended
  bool ok = false;           // the agent's answer: the key was there, the condition held
  std::string value;
  std::string error;  // the agent has the answer and could not give it: why
};

// What to send: the body, and the descriptors beside it.
struct StoreMessage {
  nlohmann::json body;
  std::optional<SharedMemory> beside;
  std::vector<int> fds() const { return beside.has_value() ? std::vector<int>{beside->fd()} : std::vector<int>{}; }
};

// INVALID_ARGUMENT, naming key and size: larger than the Store takes. RESOURCE_EXHAUSTED: no memory to carry it in.
StatusOr<StoreMessage> store_request(uint64_t id, const std::string& op, const std::string& key,
                                     const std::string& value);
// Never fails: where the value cannot be carried the answer says so.
StoreMessage store_answer(uint64_t id, bool ok, const std::string& value);

// What came with a message. INVALID_ARGUMENT: not hexadecimal, larger than allowed, or memory that does not hold what
// the body says; nothing is allocated then. Throws nlohmann::json::exception for a body without its parts.
StatusOr<std::string> store_value(const nlohmann::json& body, std::vector<Fd> fds);
StoreReply store_reply(const nlohmann::json& body, std::vector<Fd> fds);

}  // namespace keepstep::rank
