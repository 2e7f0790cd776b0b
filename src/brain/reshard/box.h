// Parts of tensors as boxes, in the terms of DCP: offsets and lengths by dimension. Pure.
//
// A box without dimensions is a scalar: one element. A box with a length of 0 has no elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keepstep::brain {

struct Box {
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> lengths;  // as many as offsets
  auto operator<=>(const Box&) const = default;

  size_t dimensions() const { return lengths.size(); }
  uint64_t end(size_t dimension) const { return offsets[dimension] + lengths[dimension]; }
};

// All of a tensor of this shape.
Box whole(const std::vector<uint64_t>& shape);

// The number of elements; std::nullopt if it does not fit 64 bits.
std::optional<uint64_t> elements(const std::vector<uint64_t>& lengths);
uint64_t elements(const Box& box);  // of a box whose count is known to fit

// Whether `box` is inside a tensor of this shape; safe for any numbers.
bool fits(const Box& box, const std::vector<uint64_t>& shape);

// The following functions take boxes with the same number of dimensions.
bool contains(const Box& outer, const Box& inner);
bool overlap(const Box& a, const Box& b);      // they share at least one element
Box intersection(const Box& a, const Box& b);  // of two that overlap

// The elements [from, to) of `box`, counted in row-major order, as at most 2 * dimensions - 1 boxes in that order.
std::vector<Box> row_major_part(const Box& box, uint64_t from, uint64_t to);

// Merges neighbors that together form one box, until there are none left. Boxes must not overlap.
void merge_neighbours(std::vector<Box>& boxes);

// "[0:128, 512:1024]", "[]" for a scalar; "[512, 1024]" for a shape.
std::string describe(const Box& box);
std::string describe_shape(const std::vector<uint64_t>& shape);

}  // namespace keepstep::brain
