// The state that a C++ program protects: named pieces of memory, the manifest that describes them to a newcomer, and
// the digests that detect changes outside a commit. The C++ counterpart of python/keepstep/torch/state/registry.py.
//
// One thread. The caller owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "rank/checks/bit_flip.h"
#include "state/hydration.h"

namespace keepstep::rank {

class ProtectedState {
 public:
  // `dtype`: as spelled in the manifest ("float32"); `element_bytes`: the size of one element. INVALID_ARGUMENT: the
  // name is taken, empty or contains a '/', or there is no memory.
  Status add(const std::string& name, void* data, const std::vector<size_t>& shape, const std::string& dtype,
             size_t element_bytes);
  // The pieces, in the order in which they were added.
  std::vector<state::Region> regions() const;
  // The same, with names.
  std::vector<NamedMemory> memory() const;
  // The manifest as JSON (docs/design/hydration.md), without values.
  std::string manifest() const;
  // Checks that `theirs`, a peer's manifest, describes the same pieces in the same order. INVALID_ARGUMENT names the
  // first difference, with both sides. `self`, `source`: "rank 2", for the message.
  Status same_as(const std::string& theirs, const std::string& self, const std::string& source) const;

  // Remembers the contents of the memory; unchanged() then returns INVALID_ARGUMENT, naming the pieces that differ.
  void remember();
  void forget() { digests_.clear(); }
  Status unchanged(uint64_t step) const;

 private:
  struct Piece {
    std::string name;
    std::string dtype;
    std::vector<size_t> shape;
    state::Region region;
  };
  std::vector<Piece> pieces_;
  std::vector<uint64_t> digests_;  // of the pieces; empty: nothing is remembered
};

}  // namespace keepstep::rank
