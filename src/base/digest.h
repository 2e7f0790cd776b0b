// One digest over many pieces of memory, computed as fast as memory can be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace keepstep {

struct Piece {
  const void* data = nullptr;
  size_t bytes = 0;
};

// 64 bits that depend on all bytes and their positions, including the lengths and order of the pieces. Not a MAC.
// `threads`: the most threads that work on it, including the caller; the result is the same for any number. Any thread
// may call it.
uint64_t digest_of(std::span<const Piece> pieces, unsigned threads = 1);

}  // namespace keepstep
