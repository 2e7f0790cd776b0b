#include "checkpoint/memory/packed.h"

#include <zstd.h>

#include <algorithm>

namespace keepstep::checkpoint::memory {
namespace {

constexpr int kLevel = 1;  // higher ones take longer, and save hardly more of weights and moments
constexpr size_t kSampleBytes = size_t{64} << 10;
constexpr size_t kLeastBytes = size_t{16} << 10;  // memory is given out in pages; below this there is little to save

// At most as many bytes as `limit`, or nothing.
std::string pack_into(std::span<const std::byte> bytes, size_t limit) {
  std::string packed(limit, '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), kLevel);
  if (ZSTD_isError(size) != 0) {
    return {};  // it does not fit
  }
  packed.resize(size);
  return packed;
}

size_t worth_it(size_t bytes) { return bytes - bytes / 8; }

}  // namespace

std::string packed(std::span<const std::byte> chunk) {
  if (chunk.size() < kLeastBytes) {
    return {};
  }
  const size_t sample = std::min(chunk.size(), kSampleBytes);
  const size_t middle = (chunk.size() - sample) / 2;
  if (pack_into(chunk.subspan(middle, sample), worth_it(sample)).empty()) {
    return {};
  }
  std::string result = pack_into(chunk, worth_it(chunk.size()));
  result.shrink_to_fit();
  return result;
}

Status unpack(std::string_view packed, std::span<std::byte> into) {
  const size_t size = ZSTD_decompress(into.data(), into.size(), packed.data(), packed.size());
  if (ZSTD_isError(size) != 0 || size != into.size()) {
    return absl::DataLossError("a packed chunk in the memory server's memory cannot be unpacked");
  }
  return absl::OkStatus();
}

}  // namespace keepstep::checkpoint::memory
