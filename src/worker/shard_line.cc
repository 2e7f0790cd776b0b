#include "worker/shard_line.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace keepstep::worker {

using comm::Outcome;

namespace {

constexpr int64_t kLookNs = 50'000'000;  // how often a wait for another rank looks whether to stop
constexpr size_t kChunksAhead = 4;       // of one rank's data, each way

// Chunks of `data`, one after the other.
template <class Byte>
std::span<Byte> next_chunk(std::span<Byte>& data) {
  const std::span<Byte> chunk = data.first(std::min(state::kVaultChunk, data.size()));
  data = data.subspan(chunk.size());
  return chunk;
}

}  // namespace

Status ShardLine::end(comm::OpId op) {
  while (!stop_.load(std::memory_order_relaxed)) {
    const comm::Completion completion = comm_.wait_for(op, kLookNs);
    if (completion.outcome == Outcome::kPending) {
      continue;
    }
    comm_.forget(op);
    if (completion.outcome == Outcome::kInterrupted) {
      return absl::AbortedError("the generation was interrupted");
    }
    return completion.outcome == Outcome::kDone ? absl::OkStatus() : absl::UnavailableError(completion.error);
  }
  return absl::AbortedError("the generation ended");
}

Status ShardLine::end_all(std::span<const comm::OpId> ops) {
  for (const comm::OpId op : ops) {
    KEEPSTEP_RETURN_IF_ERROR(end(op));
  }
  return absl::OkStatus();
}

Status ShardLine::send_chunks(comm::Rank to, std::span<const std::byte> data, uint32_t tag) {
  std::deque<comm::OpId> under_way;
  while (!data.empty() || !under_way.empty()) {
    if (!data.empty() && under_way.size() < kChunksAhead) {
      under_way.push_back(begin_send(to, next_chunk(data), tag));
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(end(under_way.front()));
    under_way.pop_front();
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> ShardLine::receive_chunks(comm::Rank from, std::span<std::byte> data, uint32_t tag) {
  state::VaultChecksum checksum;
  std::deque<std::pair<comm::OpId, std::span<const std::byte>>> under_way;
  while (!data.empty() || !under_way.empty()) {
    if (!data.empty() && under_way.size() < kChunksAhead) {
      const std::span<std::byte> chunk = next_chunk(data);
      under_way.emplace_back(begin_receive(from, chunk, tag), chunk);
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(end(under_way.front().first));
    checksum.add(under_way.front().second);
    under_way.pop_front();
  }
  return checksum.whole();
}

}  // namespace keepstep::worker
