// What one checkpoint contains and where: tensors in stored parts, objects, and the files that hold them.
//
// The terms are DCP's (torch.distributed.checkpoint): a tensor has a fully qualified name and a global shape; each part
// is a box of it (offsets and lengths, one number per dimension) that some rank wrote. A layout comes from our manifest
// or from DCP's `.metadata`; a reader of tensors needs only the layout and the files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace keepstep::checkpoint {

// Where in the nested state dict a flattened name came from: dict keys and list indexes.
using StatePath = std::vector<std::variant<std::string, int64_t>>;

struct Extent {
  uint32_t file = 0;    // index into Layout::files
  uint64_t offset = 0;  // of what torch.save wrote
  uint64_t bytes = 0;
  std::vector<std::string> transforms;  // names of the DCP stream transforms applied to it; mostly none
};

struct Part {
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
  Extent extent;
  // Where in the file the elements begin, in C order without gaps. Unknown for parts that DCP itself wrote: those are
  // read whole, by torch.load.
  std::optional<uint64_t> data;
};

struct TensorEntry {
  std::string dtype;  // torch's name without "torch."
  std::vector<int64_t> shape;
  StatePath path;
  std::vector<Part> parts;
};

struct ObjectEntry {
  StatePath path;
  Extent extent;
};

struct Layout {
  std::vector<std::string> files;
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::map<std::string, ObjectEntry, std::less<>> objects;

  uint64_t parts() const;
  uint64_t tensor_bytes() const;  // of all tensors, each once
};

// Bytes of one element; 0 for names that torch does not have.
uint32_t dtype_bytes(std::string_view dtype);

// The product of non-negative lengths; std::nullopt if it does not fit.
std::optional<uint64_t> volume_of(const std::vector<int64_t>& lengths);

// OK, or INVALID_ARGUMENT with the first impossible thing: a box outside its tensor, a file that is not listed,
// elements outside their extent. `file_bytes`: the sizes of `files` if known, otherwise empty.
Status check_layout(const Layout& layout, const std::vector<uint64_t>& file_bytes);

// OK, or NOT_FOUND naming the first tensor whose parts do not cover it.
Status check_filled(const Layout& layout);

}  // namespace keepstep::checkpoint
