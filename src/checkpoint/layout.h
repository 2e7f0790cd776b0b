// What is in one checkpoint and where: tensors in stored parts, objects, and the files they lie in.
//
// The terms are DCP's (torch.distributed.checkpoint): a tensor has a fully qualified name and a global shape; each part
// is a box of it (offsets and lengths, one number a dimension) that some rank wrote. A layout comes from our manifest
// or from DCP's `.metadata`; whoever reads tensors needs no more than this and the files.
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

// Where in the nested state dict a flattened name came from: keys of dicts and indexes of lists.
using StatePath = std::vector<std::variant<std::string, int64_t>>;

struct Place {
  uint32_t file = 0;    // index into Layout::files
  uint64_t offset = 0;  // of what torch.save wrote
  uint64_t bytes = 0;
  std::vector<std::string> transforms;  // names of DCP's stream transforms that it went through; mostly none
};

struct Part {
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
  Place place;
  // Where in the file the elements lie, in C order without gaps. Not known for what DCP itself wrote: such a part is
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
  Place place;
};

struct Layout {
  std::vector<std::string> files;
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::map<std::string, ObjectEntry, std::less<>> objects;

  uint64_t parts() const;
  uint64_t tensor_bytes() const;  // of all tensors, each once
};

// Bytes of one element, 0 for names that are not torch's.
uint32_t dtype_bytes(std::string_view dtype);

// The product of non-negative lengths, or nothing if it does not fit.
std::optional<uint64_t> volume_of(const std::vector<int64_t>& lengths);

// OK, or INVALID_ARGUMENT with the first thing that cannot be: a box outside its tensor, a file that is not listed,
// elements outside their place. `file_bytes`: sizes of `files` where they are known, else empty.
Status check_layout(const Layout& layout, const std::vector<uint64_t>& file_bytes);

// OK, or NOT_FOUND naming the first tensor that its parts do not fill.
Status check_filled(const Layout& layout);

}  // namespace keepstep::checkpoint
