// XXH3, 64 bits: checksums of chunks on the wire and digests of tensors. Not a MAC: see token.h for that.
//
// Includes xxHash so that its functions take the widest vectors the CPU has (AVX2, AVX-512; found out at run time).
// Debian's library alone is built for SSE2, and a third as fast. Include this, never xxhash.h: values are the same, but
// an inline function must not mean two things.
#pragma once

#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include <cstddef>
#include <cstdint>

namespace keepstep {

inline uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace keepstep
