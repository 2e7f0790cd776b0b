// xxHash with the widest vector instructions of this CPU. Its plain functions are built for any x86-64, that is for
// SSE2. AVX-512 computes the same values four times as fast while the data are in the cache (75 instead of 18 GB/s on
// an EPYC). Include this instead of <xxhash.h>.
#pragma once

#include <xxhash.h>

#ifdef KEEPSTEP_XXH3_DISPATCH  // the library has the functions that detect the CPU
#include <xxh_x86dispatch.h>   // from here on XXH3_64bits etc. are those functions
#endif
