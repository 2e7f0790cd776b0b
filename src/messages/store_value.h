// Values of the Store, as messages between a rank and its agent carry them (docs/formats/wire_worker.md#the-store).
// Small ones go within the message, larger ones in memory whose descriptor goes beside it: a packet has 160 KiB, and
// what c10d puts into a store may have some megabytes.
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

// What to send: the message, and the descriptors beside it.
template <typename Message>
struct WithMemory {
  Message message;
  std::optional<SharedMemory> beside;
  std::vector<int> fds() const { return beside.has_value() ? std::vector<int>{beside->fd()} : std::vector<int>{}; }
};

// INVALID_ARGUMENT, naming key and size: larger than the Store takes. RESOURCE_EXHAUSTED: no memory to carry it in.
StatusOr<WithMemory<StoreQuestion>> store_question(uint64_t id, const std::string& op, const std::string& key,
                                                   const std::string& value);
// Never fails: where the value cannot be carried the answer says so.
WithMemory<StoreAnswer> store_answer(uint64_t id, bool ok, const std::string& value);

// What came. INVALID_ARGUMENT: larger than allowed, or memory that does not hold what the message says; nothing is
// allocated then.
StatusOr<std::string> value_of(const StoreValue& value, std::vector<Fd> fds);

}  // namespace keepstep::messages
