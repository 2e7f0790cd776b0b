#include "rank/shards/shard_line.h"

#include "rank/link/rank_generation.h"

namespace keepstep::rank {

using comm::Outcome;

namespace {

constexpr int64_t kLookNs = 50'000'000;  // how often a wait for another rank checks whether to stop

}  // namespace

Status ShardLine::end(comm::OpId op) {
  while (!stop_.load(std::memory_order_relaxed)) {
    const comm::Completion completion = comm_.wait_for(op, kLookNs);
    if (completion.outcome == Outcome::kPending) {
      continue;
    }
    comm_.forget(op);
    return status_of(completion);
  }
  return absl::AbortedError("the generation ended");
}

Status ShardLine::end_all(std::span<const comm::OpId> ops) {
  for (const comm::OpId op : ops) {
    KEEPSTEP_RETURN_IF_ERROR(end(op));
  }
  return absl::OkStatus();
}

}  // namespace keepstep::rank
