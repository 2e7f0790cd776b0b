// Everything that determines the bits a C++ program computes: all workers of a job must have the same.
#pragma once

#include "messages/schema.h"

namespace keepstep::rank {

// {program, cpu}: the build id of this executable ("unknown" if it was linked without one), and a digest of the
// processor's features.
messages::Texts program_fingerprint();

}  // namespace keepstep::rank
