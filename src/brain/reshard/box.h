// Parts of tensors as boxes, in the terms of DCP: offsets and lengths by dimension. Pure.
//
// A box without dimensions is a scalar: one element. A box with a length of 0 has none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keepstep::brain {

struct Box {
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> lengths;  // as many
  auto operator<=>(const Box&) const = default;

  size_t dimensions() const { return lengths.size(); }
  uint64_t end(size_t dimension) const { return offsets[dimension] + lengths[dimension]; }
};

// All of a tensor of this shape.
Box whole(const std::vector<uint64_t>& shape);

// How many elements; nothing if that does not fit 64 bits.
std::optional<uint64_t> elements(const std::vector<uint64_t>& lengths);
uint64_t elements(const Box& box);  // of one known to fit

// `box` lies in a tensor of this shape; safe for any numbers.
bool fits(const Box& box, const std::vector<uint64_t>& shape);

// The following take boxes of the same number of dimensions.
bool contains(const Box& outer, const Box& inner);
bool overlap(const Box& a, const Box& b);      // they share at least one element
Box intersection(const Box& a, const Box& b);  // of two that overlap

// The elements [from, to) of `box`, counted in row-major order, as at most 2 * dimensions - 1 boxes, in that order.
std::vector<Box> row_major_part(const Box& box, uint64_t from, uint64_t to);

// Neighbours that make one box together become one, until there are none. Boxes must not overlap.
void merge_neighbours(std::vector<Box>& boxes);

// "[0:128, 512:1024]", "[]" for a scalar; "[512, 1024]" for a shape.
std::string describe(const Box& box);
std::string describe_shape(const std::vector<uint64_t>& shape);

}  // namespace keepstep::brain
