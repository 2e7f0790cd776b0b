// An injected silent corruption (`keepstep run --inject flip:...`) in a C++ program: one bit of its memory changes, and
// nobody is told. What python/keepstep/torch/integrity/bit_flip.py is for Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::rank {

// The caller's memory, with the name it goes by.
struct NamedMemory {
  std::string name;
  void* data = nullptr;
  size_t bytes = 0;
};

// Flips a bit of one of `pieces`, the same for the same seed and step, and says which: "weights, byte 12, bit 3".
// `what`: "parameter" or "gradient", for the error. INVALID_ARGUMENT: there is no such memory.
StatusOr<std::string> flip_bit(const std::vector<NamedMemory>& pieces, const std::string& what, uint64_t seed,
                               brain::Step step);

}  // namespace keepstep::rank
