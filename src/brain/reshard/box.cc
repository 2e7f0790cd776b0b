#include "brain/reshard/box.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "brain/require.h"

namespace keepstep::brain {
namespace {

void add_row_major_part(const Box& box, size_t dimension, uint64_t from, uint64_t to, std::vector<Box>& boxes) {
  if (from == to) {
    return;
  }
  if (dimension == box.dimensions()) {
    boxes.push_back(box);
    return;
  }
  uint64_t row = 1;  // elements of one index of this dimension
  for (size_t inner = dimension + 1; inner < box.dimensions(); ++inner) {
    row *= box.lengths[inner];
  }
  const auto rows = [&](uint64_t first, uint64_t count) {
    Box part = box;
    part.offsets[dimension] += first;
    part.lengths[dimension] = count;
    return part;
  };
  if (from / row == (to - 1) / row) {  // all in one row
    const uint64_t at = from / row;
    add_row_major_part(rows(at, 1), dimension + 1, from - at * row, to - at * row, boxes);
    return;
  }
  const uint64_t first_whole = (from + row - 1) / row;
  const uint64_t last_whole = to / row;
  if (from < first_whole * row) {
    add_row_major_part(rows(first_whole - 1, 1), dimension + 1, from - (first_whole - 1) * row, row, boxes);
  }
  if (first_whole < last_whole) {
    boxes.push_back(rows(first_whole, last_whole - first_whole));
  }
  if (last_whole * row < to) {
    add_row_major_part(rows(last_whole, 1), dimension + 1, 0, to - last_whole * row, boxes);
  }
}

// Merges boxes that are adjacent along one dimension.
bool merge_along(std::vector<Box>& boxes, size_t dimension) {
  const auto others = [dimension](const Box& box) {  // what neighbors have in common
    Box key = box;
    key.offsets[dimension] = key.lengths[dimension] = 0;
    return key;
  };
  std::vector<std::pair<Box, Box>> sorted;
  sorted.reserve(boxes.size());
  for (Box& box : boxes) {
    Box key = others(box);
    sorted.emplace_back(std::move(key), std::move(box));
  }
  std::sort(sorted.begin(), sorted.end());
  boxes.clear();
  const Box* last_key = nullptr;
  for (auto& [key, box] : sorted) {
    if (last_key != nullptr && *last_key == key && boxes.back().end(dimension) == box.offsets[dimension]) {
      boxes.back().lengths[dimension] += box.lengths[dimension];
    } else {
      boxes.push_back(std::move(box));
    }
    last_key = &key;
  }
  return boxes.size() < sorted.size();
}

std::string in_brackets(size_t count, const auto& text) {
  std::string list = "[";
  for (size_t index = 0; index < count; ++index) {
    list += (index == 0 ? "" : ", ") + text(index);
  }
  return list + "]";
}

}  // namespace

Box whole(const std::vector<uint64_t>& shape) { return {std::vector<uint64_t>(shape.size(), 0), shape}; }

std::optional<uint64_t> elements(const std::vector<uint64_t>& lengths) {
  if (std::find(lengths.begin(), lengths.end(), uint64_t{0}) != lengths.end()) {
    return 0;
  }
  uint64_t product = 1;
  for (const uint64_t length : lengths) {
    if (length > std::numeric_limits<uint64_t>::max() / product) {
      return std::nullopt;
    }
    product *= length;
  }
  return product;
}

uint64_t elements(const Box& box) {
  const std::optional<uint64_t> count = elements(box.lengths);
  require(count.has_value(), "a box has more elements than fit 64 bits");
  return *count;
}

bool fits(const Box& box, const std::vector<uint64_t>& shape) {
  if (box.offsets.size() != shape.size() || box.lengths.size() != shape.size()) {
    return false;
  }
  for (size_t dimension = 0; dimension < shape.size(); ++dimension) {
    if (box.offsets[dimension] > shape[dimension] ||
        box.lengths[dimension] > shape[dimension] - box.offsets[dimension]) {
      return false;
    }
  }
  return true;
}

bool contains(const Box& outer, const Box& inner) {
  for (size_t dimension = 0; dimension < outer.dimensions(); ++dimension) {
    if (inner.offsets[dimension] < outer.offsets[dimension] || inner.end(dimension) > outer.end(dimension)) {
      return false;
    }
  }
  return true;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t dimension = 0; dimension < a.dimensions(); ++dimension) {
    if (std::max(a.offsets[dimension], b.offsets[dimension]) >= std::min(a.end(dimension), b.end(dimension))) {
      return false;
    }
  }
  return true;
}

Box intersection(const Box& a, const Box& b) {
  Box both = a;
  for (size_t dimension = 0; dimension < a.dimensions(); ++dimension) {
    both.offsets[dimension] = std::max(a.offsets[dimension], b.offsets[dimension]);
    both.lengths[dimension] = std::min(a.end(dimension), b.end(dimension)) - both.offsets[dimension];
  }
  return both;
}

std::vector<Box> row_major_part(const Box& box, uint64_t from, uint64_t to) {
  require(from <= to && to <= elements(box), "a part reaches beyond its box");
  std::vector<Box> boxes;
  add_row_major_part(box, 0, from, to, boxes);
  return boxes;
}

void merge_neighbours(std::vector<Box>& boxes) {
  if (boxes.empty()) {
    return;
  }
  bool again = true;
  while (again) {
    again = false;
    for (size_t dimension = boxes.front().dimensions(); dimension > 0; --dimension) {
      again |= boxes.size() > 1 && merge_along(boxes, dimension - 1);
    }
  }
}

std::string describe(const Box& box) {
  return in_brackets(box.dimensions(), [&](size_t dimension) {
    return std::to_string(box.offsets[dimension]) + ":" + std::to_string(box.end(dimension));
  });
}

std::string describe_shape(const std::vector<uint64_t>& shape) {
  return in_brackets(shape.size(), [&](size_t dimension) { return std::to_string(shape[dimension]); });
}

}  // namespace keepstep::brain
