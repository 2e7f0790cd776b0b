// Converts tokens as stored in a file to the 64-bit numbers that tensors of tokens hold. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/corpus/token_index.h"

namespace keepstep::data {

// out[i] = token i of `from`, for i < count. `from` is aligned to the token's size.
void widen(TokenType type, const std::byte* from, uint64_t count, int64_t* out);

}  // namespace keepstep::data
