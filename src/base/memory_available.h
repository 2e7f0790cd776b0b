// How much memory the machine and this process's memory cgroups provide, for code that allocates without malloc.
#pragma once

#include <cstdint>

namespace keepstep {

// Bytes that could be had now without swapping; the largest value if the kernel does not report it.
uint64_t memory_available();

// Bytes that could be had if nothing else used any.
uint64_t memory_total();

}  // namespace keepstep
