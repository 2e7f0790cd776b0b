// Values of the Store in messages between a rank and its agent (docs/formats/wire_worker.md#the-store). Small ones
// travel in the message, larger ones in memory whose descriptor is sent with it: a packet holds 160 KiB, and c10d may
// store values of some megabytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "messages/rank_messages.h"

namespace keepstep::messages {

inline constexpr size_t kMaxStoreValueBytes = size_t{8} << 20;
inline constexpr size_t kMaxStoreKeyBytes = size_t{16} << 10;

// A message to send, with its memory.
template <typename Message>
struct WithMemory {
  Message message;
  std::optional<SharedMemory> beside;
  std::vector<int> fds() const { return beside.has_value() ? std::vector<int>{beside->fd()} : std::vector<int>{}; }
};

// INVALID_ARGUMENT, naming key and size: larger than the Store accepts. RESOURCE_EXHAUSTED: no memory to carry it.
StatusOr<WithMemory<StoreQuestion>> store_question(uint64_t id, const std::string& op, const std::string& key,
                                                   const std::string& value);
// Never fails: if the value cannot be carried, the answer reports it.
WithMemory<StoreAnswer> store_answer(uint64_t id, bool ok, const std::string& value);

// The received value. INVALID_ARGUMENT: larger than allowed, or the memory does not match the message; nothing is
// allocated then.
StatusOr<std::string> value_of(const StoreValue& value, std::vector<Fd> fds);

}  // namespace keepstep::messages
