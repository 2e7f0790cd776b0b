#include "worker/shard_line.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace keepstep::worker {

using comm::Outcome;

namespace {

constexpr int64_t kLookNs = 50'000'000;  // how often a wait for another rank looks whether to stop
// Of a vault's data. Long ones: where training takes all CPUs each hand-over between threads waits for one. (On 2 CPUs
// four messages of 1 MiB were quicker for 2 ranks, half of loopback, not 0.42; but with 4 ranks updates waited 65 ms
// for them, not 15.)
constexpr size_t kMessageBytes = 16 * state::kVaultChunk;
constexpr size_t kMessagesAhead = 2;  // of one rank's data, each way

// The first bytes of `data`, which loses them.
template <class Byte>
std::span<Byte> take(std::span<Byte>& data, size_t most) {
  const std::span<Byte> taken = data.first(std::min(most, data.size()));
  data = data.subspan(taken.size());
  return taken;
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

Status ShardLine::send_data(comm::Rank to, std::span<const std::byte> data, uint32_t tag) {
  std::deque<comm::OpId> under_way;
  while (!data.empty() || !under_way.empty()) {
    if (!data.empty() && under_way.size() < kMessagesAhead) {
      under_way.push_back(begin_send(to, take(data, kMessageBytes), tag));
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(end(under_way.front()));
    under_way.pop_front();
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> ShardLine::receive_data(comm::Rank from, std::span<std::byte> data, uint32_t tag) {
  state::VaultChecksum checksum;
  std::deque<std::pair<comm::OpId, std::span<const std::byte>>> under_way;
  while (!data.empty() || !under_way.empty()) {
    if (!data.empty() && under_way.size() < kMessagesAhead) {
      const std::span<std::byte> message = take(data, kMessageBytes);
      under_way.emplace_back(begin_receive(from, message, tag), message);
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(end(under_way.front().first));
    for (std::span<const std::byte> came = under_way.front().second; !came.empty();) {
      checksum.add(take(came, state::kVaultChunk));
    }
    under_way.pop_front();
  }
  return checksum.whole();
}

}  // namespace keepstep::worker
