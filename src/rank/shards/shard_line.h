// The messages that ranks exchange when shards are copied (shard_copier.h) or coded (parity_keeper.h): messages of the
// world group, waited for until the copying stops.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"
#include "state/vault/parity_vault.h"

namespace keepstep::rank {

// From a rank to the keepers of its copies or parity: the version that comes next, or kNoMoreVersions.
using ShardHead = state::MemberShard;
inline constexpr brain::Version kNoMoreVersions = ~brain::Version{0};

// The keeper's answer: before the bytes, and after them.
enum class ShardAnswer : uint32_t { kSend, kHave, kBroken, kFailed };

inline constexpr int kShardTries = 3;  // attempts when bytes arrive corrupted

// Each operation is begun, then ended once. If waiting for its end was given up, it stays behind until the communicator
// ends: memory that it reads or writes must live as long.
class ShardLine {
 public:
  // Both must outlive it.
  ShardLine(comm::Communicator& comm, const std::atomic<bool>& stop) : comm_(comm), stop_(stop) {}

  comm::OpId begin_send(comm::Rank to, std::span<const std::byte> bytes, uint32_t tag) {
    return comm_.send(comm::kWorld, bytes.data(), bytes.size(), to, tag);
  }
  comm::OpId begin_receive(comm::Rank from, std::span<std::byte> bytes, uint32_t tag) {
    return comm_.receive(comm::kWorld, bytes.data(), bytes.size(), from, tag);
  }
  // Like status_of() (rank_generation.h); ABORTED also if stopped.
  Status end(comm::OpId op);
  Status end_all(std::span<const comm::OpId> ops);

  Status send(comm::Rank to, const void* data, size_t bytes, uint32_t tag) {
    return end(comm_.send(comm::kWorld, data, bytes, to, tag));
  }
  Status receive(comm::Rank from, void* data, size_t bytes, uint32_t tag) {
    return end(comm_.receive(comm::kWorld, data, bytes, from, tag));
  }
  bool stopped() const { return stop_.load(std::memory_order_relaxed) || comm_.interrupted(); }

 private:
  comm::Communicator& comm_;
  const std::atomic<bool>& stop_;
};

}  // namespace keepstep::rank
