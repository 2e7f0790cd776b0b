#include "checkpoint/sums.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace keepstep::checkpoint {
namespace {

Sum from(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

std::optional<uint64_t> half_from_hex(std::string_view hex) {
  uint64_t value = 0;
  for (const char c : hex) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

}  // namespace

Sum sum_of(std::span<const std::byte> bytes) { return from(XXH3_128bits(bytes.data(), bytes.size())); }

std::string to_hex(const Sum& sum) { return absl::StrFormat("%016x%016x", sum.high, sum.low); }

std::optional<Sum> sum_from_hex(std::string_view hex) {
  if (hex.size() != 32) {
    return std::nullopt;
  }
  const std::optional<uint64_t> high = half_from_hex(hex.substr(0, 16));
  const std::optional<uint64_t> low = half_from_hex(hex.substr(16));
  return high && low ? std::optional<Sum>({*high, *low}) : std::nullopt;
}

SumStream::SumStream() : whole_(XXH3_createState()), chunk_(XXH3_createState()) {
  XXH3_128bits_reset(whole_.get());
  XXH3_128bits_reset(chunk_.get());
}

void SumStream::add(std::span<const std::byte> bytes) {
  sums_.bytes += bytes.size();
  while (!bytes.empty()) {
    // Small enough that the second checksum finds it in the cache.
    constexpr uint64_t kBite = 256 << 10;
    const auto bite = bytes.first(std::min({bytes.size(), size_t{kBite}, size_t{kChunkBytes - in_chunk_}}));
    XXH3_128bits_update(whole_.get(), bite.data(), bite.size());
    XXH3_128bits_update(chunk_.get(), bite.data(), bite.size());
    in_chunk_ += bite.size();
    if (in_chunk_ == kChunkBytes) {
      sums_.chunks.push_back(from(XXH3_128bits_digest(chunk_.get())));
      XXH3_128bits_reset(chunk_.get());
      in_chunk_ = 0;
    }
    bytes = bytes.subspan(bite.size());
  }
}

FileSums SumStream::finish() {
  if (in_chunk_ > 0) {
    sums_.chunks.push_back(from(XXH3_128bits_digest(chunk_.get())));
  }
  sums_.whole = from(XXH3_128bits_digest(whole_.get()));
  return std::move(sums_);
}

}  // namespace keepstep::checkpoint
