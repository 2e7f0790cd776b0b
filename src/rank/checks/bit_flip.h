// An injected silent corruption (`keepstep run --inject flip:...`) in a C++ program: one bit of its memory changes,
// without any notification. The C++ counterpart of python/keepstep/torch/integrity/bit_flip.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::rank {

// The caller's memory, and its name.
struct NamedMemory {
  std::string name;
  void* data = nullptr;
  size_t bytes = 0;
};

// Flips one bit in one of `pieces`, the same bit for the same seed and step, and returns its place: "weights, byte 12,
// bit 3". `what`: "parameter" or "gradient", for the error. INVALID_ARGUMENT: there is no such memory.
StatusOr<std::string> flip_bit(const std::vector<NamedMemory>& pieces, const std::string& what, uint64_t seed,
                               brain::Step step);

}  // namespace keepstep::rank
