// One digest of many pieces of memory, as fast as memory can be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace keepstep {

struct Piece {
  const void* data = nullptr;
  size_t bytes = 0;
};

// 64 bits that depend on all bytes and on where they are: lengths and order of the pieces count. Not a MAC. `threads`:
// at most so many work at it, this one included; the result is the same for any number. Any thread.
uint64_t digest_of(std::span<const Piece> pieces, unsigned threads = 1);

}  // namespace keepstep
