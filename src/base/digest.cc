#include "base/digest.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/checksum.h"

namespace keepstep {
namespace {

constexpr size_t kBlockBytes = 1 << 20;  // the unit of work of a thread

struct Block {
  const std::byte* data;
  size_t bytes;
};

}  // namespace

uint64_t digest_of(std::span<const Piece> pieces, unsigned threads) {
  std::vector<Block> blocks;
  std::vector<uint64_t> parts;  // for each piece: its length, then its blocks
  std::vector<size_t> places;   // for each block: its index in `parts`
  for (const Piece& piece : pieces) {
    parts.push_back(piece.bytes);
    for (size_t at = 0; at < piece.bytes; at += kBlockBytes) {
      blocks.push_back({static_cast<const std::byte*>(piece.data) + at, std::min(kBlockBytes, piece.bytes - at)});
      places.push_back(parts.size());
      parts.push_back(0);
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < blocks.size(); i = next.fetch_add(1)) {
      parts[places[i]] = checksum(blocks[i].data, blocks[i].bytes);
    }
  };
  std::vector<std::jthread> helpers;
  for (size_t i = 1; i < std::min<size_t>(threads, blocks.size() / 4); ++i) {  // a thread pays off from a few MiB
    helpers.emplace_back(work);
  }
  work();
  helpers.clear();
  return checksum(parts.data(), parts.size() * sizeof(uint64_t));
}

}  // namespace keepstep
