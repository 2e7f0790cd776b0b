// Gathers a list of numbers from each rank on all ranks of the world; on the wire all are padded to the longest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace keepstep::rank {

class WordGather {
 public:
  // Waits for an operation.
  using End = std::function<Status(comm::OpId)>;

  // Must outlive `comm`, if `end` may leave operations behind.
  WordGather(comm::Communicator& comm, comm::Rank world, End end) : comm_(comm), world_(world), end_(std::move(end)) {}

  // By rank, its list. Statuses as for `end`; UNAVAILABLE, on all ranks: a list is longer than `most`.
  StatusOr<std::vector<std::vector<uint32_t>>> gather(const std::vector<uint32_t>& mine, size_t most);

 private:
  comm::Communicator& comm_;
  const comm::Rank world_;
  const End end_;
  int64_t longest_ = 0;
  std::vector<uint32_t> given_;               // the count, the numbers, then zeros
  std::vector<std::vector<uint32_t>> taken_;  // by rank
};

}  // namespace keepstep::rank
