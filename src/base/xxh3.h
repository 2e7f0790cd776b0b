// xxHash with the widest vector instructions of this CPU. Its plain functions are built for any x86-64, which has SSE2:
// with AVX-512 the same values come four times as fast while data are in the cache (75 instead of 18 GB/s on an
// EPYC). To be included instead of <xxhash.h>.
#pragma once

#include <xxhash.h>

#ifdef KEEPSTEP_XXH3_DISPATCH  // the library has the functions that look at the CPU
#include <xxh_x86dispatch.h>   // from here on XXH3_64bits and the like are those
#endif
