#include "state/tensor_space.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"

namespace keepstep::state {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;  // copied and then hashed while it is still in the cache
static_assert(kBlockBytes <= DeviceLane::kBlockBytes);
constexpr uint64_t kBlocksBetweenQuestions = 32;

// XXH3 over consecutive pieces: the same value as over all of them at once.
class RunningChecksum {
 public:
  explicit RunningChecksum(DeviceCopy& copy) : copy_(copy), state_(XXH3_createState(), &XXH3_freeState) {
    KEEPSTEP_CHECK(state_ != nullptr, "out of memory");
    XXH3_64bits_reset(state_.get());
  }

  void add(const std::byte* device, size_t bytes) {
    const void* view = copy_.host_view(device);
    if (view == nullptr) {
      if (staging_ == nullptr) {
        staging_ = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
      }
      copy_.read(staging_.get(), device, bytes);
      view = staging_.get();
    }
    XXH3_64bits_update(state_.get(), view, bytes);
  }

  void add_host(const std::byte* host, size_t bytes) { XXH3_64bits_update(state_.get(), host, bytes); }

  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  DeviceCopy& copy_;
  std::unique_ptr<std::byte[]> staging_;
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

StatusOr<TensorSpace> TensorSpace::create(std::vector<Region> regions) {
  TensorSpace space;
  space.starts_.reserve(regions.size() + 1);
  for (size_t entry = 0; entry < regions.size(); ++entry) {
    if (regions[entry].bytes > 0 && regions[entry].data == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("entry %d has %d bytes and no memory", entry, regions[entry].bytes));
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(space.starts_.back(), regions[entry].bytes, &end)) {
      return absl::InvalidArgumentError(absl::StrFormat("the sizes up to entry %d exceed 2^64 bytes", entry));
    }
    space.starts_.push_back(end);
    space.any_device_ = space.any_device_ || regions[entry].device != kMainMemory;
  }
  space.regions_ = std::move(regions);
  return space;
}

Status TensorSpace::open_devices(DeviceCopy& copy) const {
  std::set<int> devices;
  for (const Region& region : regions_) {
    if (region.device != kMainMemory && devices.insert(region.device).second) {
      KEEPSTEP_RETURN_IF_ERROR(copy.open(region.device));
    }
  }
  return absl::OkStatus();
}

uint64_t TensorSpace::sizes_checksum() const {
  std::vector<uint64_t> sizes(regions_.size());
  std::transform(regions_.begin(), regions_.end(), sizes.begin(), [](const Region& region) { return region.bytes; });
  return checksum(sizes.data(), sizes.size() * sizeof(uint64_t));
}

// The entry that contains byte `offset`; entries() at the very end.
size_t TensorSpace::entry_at(uint64_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
}

std::string TensorSpace::describe(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0) {
    return "an empty span";
  }
  const size_t first = entry_at(offset);
  const size_t last = entry_at(offset + bytes - 1);
  if (first != last) {
    return absl::StrFormat("entries %d to %d", first, last);
  }
  return absl::StrFormat("bytes %d to %d of entry %d", offset - starts_[first], offset + bytes - 1 - starts_[first],
                         first);
}

template <typename Visit>
void TensorSpace::each_block(uint64_t offset, uint64_t bytes, Visit visit) const {
  KEEPSTEP_CHECK(offset <= total_bytes() && bytes <= total_bytes() - offset, "outside the tensors");
  const uint64_t end = offset + bytes;
  size_t entry = entry_at(offset);
  for (uint64_t at = offset; at < end;) {
    const uint64_t stop = std::min(end, starts_[entry + 1]);
    if (at == stop) {
      ++entry;
      continue;
    }
    const uint64_t take = std::min(stop - at, kBlockBytes);
    visit(static_cast<std::byte*>(regions_[entry].data) + (at - starts_[entry]), take, at - offset,
          regions_[entry].device);
    at += take;
  }
}

bool TensorSpace::touches_device(uint64_t offset, uint64_t bytes) const {
  if (!any_device_ || bytes == 0) {
    return false;
  }
  const size_t last = entry_at(offset + bytes - 1);
  for (size_t entry = entry_at(offset); entry <= last; ++entry) {
    if (regions_[entry].device != kMainMemory) {
      return true;
    }
  }
  return false;
}

// A span as blocks: consecutive pieces on one device are packed into one, so that hundreds of small tensors cost a few
// waits. Half of a lane's ring is for transfers to the device, the other half for transfers from it; block b uses place
// b % kDepth of each, and at most kDepth blocks are in transit.
class TensorSpace::DeviceSpan {
 public:
  static constexpr size_t kDepth = DeviceLane::kBlocks / 2;

  DeviceSpan(const TensorSpace& space, DeviceCopy& copy, RunningChecksum& sum, uint64_t offset, uint64_t bytes)
      : copy_(copy), sum_(sum) {
    space.each_block(offset, bytes, [&](std::byte* memory, size_t take, uint64_t at, int device) {
      pieces_.push_back({memory, take, at, device});
      if (blocks_.empty() || device == kMainMemory || blocks_.back().device != device ||
          blocks_.back().bytes + take > kBlockBytes) {
        blocks_.push_back({pieces_.size() - 1, 0, 0, device});
      }
      ++blocks_.back().pieces;
      blocks_.back().bytes += take;
    });
  }

  // Copies to `host`, if it is not null, and into the checksum. False: a copy failed.
  bool read(std::byte* host) {
    run([&](size_t number, DeviceLane& lane) { start_reading(number, lane); },
        [&](size_t number) {
          const Block& block = blocks_[number];
          if (block.device == kMainMemory) {
            const Piece& piece = pieces_[block.first];
            if (host != nullptr) {
              copy_.read(host + piece.at, piece.memory, piece.bytes);
            }
            sum_.add(piece.memory, piece.bytes);
          } else if (const std::byte* came = finish(number); came != nullptr && host != nullptr) {
            std::memcpy(host + pieces_[block.first].at, came, block.bytes);
          }
        });
    return !failed_;
  }

  // Copies from `host`; what the tensors then hold goes into the checksum. False: a copy failed.
  bool write(const std::byte* host) {
    run(
        [&](size_t number, DeviceLane& lane) {
          const Block& block = blocks_[number];
          const size_t place = number % kDepth;
          std::memcpy(lane.block(place), host + pieces_[block.first].at, block.bytes);
          each_piece(block,
                     [&](const Piece& piece, size_t at) { lane.start_write(place, at, piece.memory, piece.bytes); });
          start_reading(number, lane);  // after the write: a lane preserves order
        },
        [&](size_t number) {
          const Block& block = blocks_[number];
          if (block.device == kMainMemory) {
            const Piece& piece = pieces_[block.first];
            copy_.write(piece.memory, host + piece.at, piece.bytes);
            sum_.add(piece.memory, piece.bytes);
          } else {
            DeviceLane* lane = lane_of(block.device);
            failed_ = failed_ || lane == nullptr || !lane->finish(number % kDepth);
            (void)finish(number);
          }
        });
    return !failed_;
  }

 private:
  struct Block {
    size_t first = 0;  // in pieces_
    size_t pieces = 0;
    uint64_t bytes = 0;
    int device = kMainMemory;
  };

  template <typename Start, typename Finish>
  void run(Start start, Finish finish_block) {
    size_t started = 0;
    for (size_t number = 0; number < blocks_.size(); ++number) {
      for (; started < blocks_.size() && started < number + kDepth; ++started) {
        if (DeviceLane* lane = lane_of(blocks_[started].device); lane != nullptr) {
          start(started, *lane);
        }
      }
      finish_block(number);
    }
  }

  void start_reading(size_t number, DeviceLane& lane) {
    each_piece(blocks_[number], [&](const Piece& piece, size_t at) {
      lane.start_read(kDepth + number % kDepth, at, piece.memory, piece.bytes);
    });
  }

  // The block's bytes as read back from the device, also added to the checksum; null if the copy failed.
  const std::byte* finish(size_t number) {
    const Block& block = blocks_[number];
    DeviceLane* lane = lane_of(block.device);
    const size_t place = kDepth + number % kDepth;
    if (lane == nullptr || !lane->finish(place)) {
      failed_ = true;
      return nullptr;
    }
    sum_.add_host(lane->block(place), block.bytes);
    return lane->block(place);
  }

  template <typename Visit>
  void each_piece(const Block& block, Visit visit) {
    size_t at = 0;
    for (const Piece& piece : std::span(pieces_).subspan(block.first, block.pieces)) {
      visit(piece, at);
      at += piece.bytes;
    }
  }

  DeviceLane* lane_of(int device) {
    if (device == kMainMemory) {
      return nullptr;
    }
    const auto [entry, fresh] = lanes_.try_emplace(device);
    if (fresh) {
      entry->second = copy_.lane(device);
    }
    return entry->second.get();
  }

  DeviceCopy& copy_;
  RunningChecksum& sum_;
  std::vector<Piece> pieces_;
  std::vector<Block> blocks_;
  std::map<int, LaneLease> lanes_;
  bool failed_ = false;
};

uint64_t TensorSpace::read(DeviceCopy& copy, uint64_t offset, uint64_t bytes, std::byte* host) const {
  RunningChecksum sum(copy);
  if (touches_device(offset, bytes)) {
    return DeviceSpan(*this, copy, sum, offset, bytes).read(host) ? sum.value() : ~sum.value();
  }
  each_block(offset, bytes, [&](const std::byte* memory, size_t take, uint64_t at, int /*device*/) {
    copy.read(host + at, memory, take);
    sum.add(memory, take);
  });
  return sum.value();
}

uint64_t TensorSpace::write(DeviceCopy& copy, uint64_t offset, uint64_t bytes, const std::byte* host) const {
  RunningChecksum sum(copy);
  if (touches_device(offset, bytes)) {
    return DeviceSpan(*this, copy, sum, offset, bytes).write(host) ? sum.value() : ~sum.value();
  }
  each_block(offset, bytes, [&](std::byte* memory, size_t take, uint64_t at, int /*device*/) {
    copy.write(memory, host + at, take);
    sum.add(memory, take);
  });
  return sum.value();
}

uint64_t TensorSpace::digest(DeviceCopy& copy, size_t entry, const std::function<bool()>& give_up) const {
  RunningChecksum sum(copy);
  uint64_t blocks = 0;
  bool stopped = false;
  if (regions_[entry].device != kMainMemory) {
    const uint64_t end = starts_[entry + 1];
    for (uint64_t at = starts_[entry]; at < end && !stopped; at += kBlocksBetweenQuestions * kBlockBytes) {
      const uint64_t take = std::min(end - at, kBlocksBetweenQuestions * kBlockBytes);
      if (!DeviceSpan(*this, copy, sum, at, take).read(nullptr)) {
        return ~sum.value();
      }
      stopped = give_up();
    }
    return sum.value();
  }
  each_block(starts_[entry], regions_[entry].bytes, [&](const std::byte* memory, size_t take, uint64_t, int) {
    stopped = stopped || (++blocks % kBlocksBetweenQuestions == 0 && give_up());
    if (!stopped) {
      sum.add(memory, take);
    }
  });
  return sum.value();
}

}  // namespace keepstep::state
