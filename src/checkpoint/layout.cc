#include "checkpoint/layout.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"

namespace keepstep::checkpoint {
namespace {

struct Width {
  std::string_view name;
  uint32_t bytes;
};

constexpr auto kWidths = std::to_array<Width>({
    {"float32", 4},         {"bfloat16", 2},
    {"float16", 2},         {"float64", 8},
    {"int64", 8},           {"int32", 4},
    {"int16", 2},           {"int8", 1},
    {"uint8", 1},           {"bool", 1},
    {"uint16", 2},          {"uint32", 4},
    {"uint64", 8},          {"complex64", 8},
    {"complex128", 16},     {"complex32", 4},
    {"float8_e4m3fn", 1},   {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1}, {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},  {"float4_e2m1fn_x2", 1},
});

std::string in_words(const std::vector<int64_t>& numbers) { return "[" + absl::StrJoin(numbers, ", ") + "]"; }

Status check_extent(const Layout& layout, const std::vector<uint64_t>& file_bytes, std::string_view name,
                    const Extent& extent) {
  if (extent.file >= layout.files.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' lies in a file that is not listed", name));
  }
  const uint64_t end = extent.offset + extent.bytes;
  if (end < extent.offset || (!file_bytes.empty() && end > file_bytes[extent.file])) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' lies at bytes %d to %d of '%s', outside of it", name,
                                                      extent.offset, end, layout.files[extent.file]));
  }
  return absl::OkStatus();
}

Status check_part(std::string_view name, const TensorEntry& tensor, const Part& part) {
  if (part.offsets.size() != tensor.shape.size() || part.lengths.size() != tensor.shape.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' has %d dimensions, one of its parts has %d", name,
                                                      tensor.shape.size(), part.offsets.size()));
  }
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (part.offsets[i] < 0 || part.lengths[i] < 0 || part.offsets[i] > tensor.shape[i] ||
        part.lengths[i] > tensor.shape[i] - part.offsets[i]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' has shape %s, one of its parts begins at %s and is %s large", name,
                          in_words(tensor.shape), in_words(part.offsets), in_words(part.lengths)));
    }
  }
  if (part.data.has_value()) {
    const uint64_t elements = volume_of(part.lengths).value_or(UINT64_MAX);
    const uint64_t width = dtype_bytes(tensor.dtype);
    if (width == 0 || elements > UINT64_MAX / width || *part.data < part.extent.offset ||
        *part.data - part.extent.offset > part.extent.bytes ||
        elements * width > part.extent.bytes - (*part.data - part.extent.offset)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("'%s' (%s): a part of %s does not fit where it should lie, %d bytes at %d", name,
                          tensor.dtype, in_words(part.lengths), part.extent.bytes, part.extent.offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t dtype_bytes(std::string_view dtype) {
  for (const Width& width : kWidths) {
    if (width.name == dtype) {
      return width.bytes;
    }
  }
  return 0;
}

std::optional<uint64_t> volume_of(const std::vector<int64_t>& lengths) {
  uint64_t volume = 1;
  for (const int64_t length : lengths) {
    if (length < 0 || __builtin_mul_overflow(volume, static_cast<uint64_t>(length), &volume)) {
      return std::nullopt;
    }
  }
  return volume;
}

uint64_t Layout::parts() const {
  uint64_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    count += tensor.parts.size();
  }
  return count;
}

uint64_t Layout::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += volume_of(tensor.shape).value_or(0) * dtype_bytes(tensor.dtype);
  }
  return bytes;
}

Status check_layout(const Layout& layout, const std::vector<uint64_t>& file_bytes) {
  for (const auto& [name, tensor] : layout.tensors) {
    if (!volume_of(tensor.shape).has_value()) {
      return absl::InvalidArgumentError(absl::StrFormat("'%s' has shape %s", name, in_words(tensor.shape)));
    }
    for (const Part& part : tensor.parts) {
      KEEPSTEP_RETURN_IF_ERROR(check_extent(layout, file_bytes, name, part.extent));
      KEEPSTEP_RETURN_IF_ERROR(check_part(name, tensor, part));
    }
  }
  for (const auto& [name, object] : layout.objects) {
    KEEPSTEP_RETURN_IF_ERROR(check_extent(layout, file_bytes, name, object.extent));
  }
  return absl::OkStatus();
}

Status check_filled(const Layout& layout) {
  for (const auto& [name, tensor] : layout.tensors) {
    uint64_t filled = 0;
    for (const Part& part : tensor.parts) {
      filled += volume_of(part.lengths).value_or(0);
    }
    const uint64_t wanted = volume_of(tensor.shape).value_or(0);
    if (filled < wanted) {
      return absl::NotFoundError(absl::StrFormat("'%s' has %d elements, its parts have %d", name, wanted, filled));
    }
  }
  return absl::OkStatus();
}

}  // namespace keepstep::checkpoint
