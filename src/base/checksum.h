// XXH3, 64 bits: checksums of chunks on the wire and digests of tensors. Not a MAC: see token.h for that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/xxh3.h"

namespace keepstep {

inline uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace keepstep
