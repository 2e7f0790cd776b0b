// How much memory the machine can still provide, for code that allocates without malloc.
#pragma once

#include <cstdint>

namespace keepstep {

// Bytes that the kernel could provide now without swapping; the largest value if the kernel does not report it.
uint64_t memory_available();

}  // namespace keepstep
