// How much memory the machine could still hand out, for those who take it without malloc.
#pragma once

#include <cstdint>

namespace keepstep {

// What the kernel could hand out now without swapping, in bytes; all there is if it does not say.
uint64_t memory_available();

}  // namespace keepstep
