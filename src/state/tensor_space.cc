#include "state/tensor_space.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"

namespace keepstep::state {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;  // copied and then hashed while it is still in the cache
constexpr uint64_t kBlocksBetweenQuestions = 32;

// XXH3 over pieces in turn: the same value as over all of them at once.
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
  }
  space.regions_ = std::move(regions);
  return space;
}

uint64_t TensorSpace::sizes_checksum() const {
  std::vector<uint64_t> sizes(regions_.size());
  std::transform(regions_.begin(), regions_.end(), sizes.begin(), [](const Region& region) { return region.bytes; });
  return checksum(sizes.data(), sizes.size() * sizeof(uint64_t));
}

// The entry that byte `offset` belongs to; entries() at the very end.
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
    visit(static_cast<std::byte*>(regions_[entry].data) + (at - starts_[entry]), take, at - offset);
    at += take;
  }
}

uint64_t TensorSpace::read(DeviceCopy& copy, uint64_t offset, uint64_t bytes, std::byte* host) const {
  RunningChecksum sum(copy);
  each_block(offset, bytes, [&](const std::byte* device, size_t take, uint64_t at) {
    copy.read(host + at, device, take);
    sum.add(device, take);
  });
  return sum.value();
}

uint64_t TensorSpace::write(DeviceCopy& copy, uint64_t offset, uint64_t bytes, const std::byte* host) const {
  RunningChecksum sum(copy);
  each_block(offset, bytes, [&](std::byte* device, size_t take, uint64_t at) {
    copy.write(device, host + at, take);
    sum.add(device, take);
  });
  return sum.value();
}

uint64_t TensorSpace::digest(DeviceCopy& copy, size_t entry, const std::function<bool()>& give_up) const {
  RunningChecksum sum(copy);
  uint64_t blocks = 0;
  bool stopped = false;
  each_block(starts_[entry], regions_[entry].bytes, [&](const std::byte* device, size_t take, uint64_t /*at*/) {
    stopped = stopped || (++blocks % kBlocksBetweenQuestions == 0 && give_up());
    if (!stopped) {
      sum.add(device, take);
    }
  });
  return sum.value();
}

}  // namespace keepstep::state
