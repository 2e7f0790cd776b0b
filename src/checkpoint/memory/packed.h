// Chunks packed with zstd, one frame each.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep::checkpoint::memory {

// The chunk in fewer bytes. Empty where that does not pay: a sample shows whether to try, and less than an eighth saved
// is not worth unpacking it at each read.
std::string packed(std::span<const std::byte> chunk);

// Fills `into`, which has the size of the chunk. DATA_LOSS: these are not the packed bytes of such a chunk.
Status unpack(std::string_view packed, std::span<std::byte> into);

}  // namespace keepstep::checkpoint::memory
