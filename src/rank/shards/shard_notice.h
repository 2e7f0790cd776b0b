// What a rank says of itself and of the copies of shards on its node when a generation forms: whether it needs
// anything, and a bit for each shard. As all_gather needs it: of one length on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace keepstep::rank {

class ShardNotice {
 public:
  explicit ShardNotice(comm::Rank shards) : bytes_(1 + (shards + 7) / 8, 0) {}
  void* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  void set_need() { bytes_[0] = 1; }
  bool needs() const { return bytes_[0] != 0; }
  void set_holds(comm::Rank shard) { bytes_[1 + shard / 8] |= static_cast<uint8_t>(1U << shard % 8); }
  bool operator==(const ShardNotice&) const = default;
  bool holds(comm::Rank shard) const { return (bytes_[1 + shard / 8] >> shard % 8 & 1) != 0; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace keepstep::rank
