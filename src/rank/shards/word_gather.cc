#include "rank/shards/word_gather.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace keepstep::rank {

StatusOr<std::vector<std::vector<uint32_t>>> WordGather::gather(const std::vector<uint32_t>& mine, size_t most) {
  longest_ = static_cast<int64_t>(mine.size());
  KEEPSTEP_RETURN_IF_ERROR(
      end_(comm_.all_reduce(comm::kWorld, &longest_, 1, comm::DataType::kInt64, comm::ReduceOp::kMax)));
  if (longest_ < 0 || static_cast<uint64_t>(longest_) > most) {
    return absl::UnavailableError(absl::StrFormat("a rank announced %d words, %d are the most", longest_, most));
  }
  if (longest_ == 0) {
    return std::vector<std::vector<uint32_t>>(world_);
  }
  const size_t words = 1 + static_cast<size_t>(longest_);
  given_.assign(1, static_cast<uint32_t>(mine.size()));
  given_.insert(given_.end(), mine.begin(), mine.end());
  given_.resize(words);
  taken_.assign(world_, std::vector<uint32_t>(words));
  std::vector<void*> outputs;
  for (std::vector<uint32_t>& each : taken_) {
    outputs.push_back(each.data());
  }
  KEEPSTEP_RETURN_IF_ERROR(
      end_(comm_.all_gather(comm::kWorld, given_.data(), outputs, given_.size() * sizeof(uint32_t))));
  for (std::vector<uint32_t>& each : taken_) {
    if (each.front() > longest_) {
      return absl::UnavailableError(
          absl::StrFormat("a rank announced %d words, and then gave %d", longest_, each.front()));
    }
    each.resize(1 + each.front());
    each.erase(each.begin());
  }
  return std::move(taken_);
}

}  // namespace keepstep::rank
