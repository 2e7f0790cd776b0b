// The manifest of a source of sharded state: which parts of named tensors it has, as text.
//
//   {"format": 1, "version": 118, "shards": [
//     ["model/head.weight", "bfloat16", [1024, 512], [256, 0], [256, 512]], ...]}
//
// Name, dtype, shape of the whole tensor, then offsets and lengths of the part (DCP's terms). The bytes of all parts
// are served in this order, without gaps, each part in row-major order. brain/reshard/reshard_plan.h makes plans from
// several such manifests.
//
// The text is not trusted: every entry is checked before its numbers are used to allocate anything, everything that is
// not listed above is an error, and the text is parsed without building a document from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "brain/reshard/reshard_plan.h"

namespace keepstep::state {

inline constexpr uint64_t kShardManifestFormat = 1;
inline constexpr size_t kMaxManifestText = size_t{64} << 20;  // bytes
inline constexpr size_t kMaxManifestShards = 1 << 18;
inline constexpr size_t kMaxShardName = 4096;  // bytes
inline constexpr size_t kMaxShardDimensions = 64;

struct ShardManifest {
  brain::Version version = 0;
  std::vector<brain::ShardEntry> shards;
  bool operator==(const ShardManifest&) const = default;
};

// INVALID_ARGUMENT naming the entry and what is wrong with it; UNIMPLEMENTED for a newer format. In a manifest that is
// returned every part fits its tensor, no two are the same, and the bytes of a tensor and of all parts fit 62 bits.
StatusOr<ShardManifest> parse_shard_manifest(std::string_view text);

// Text that parse_shard_manifest() accepts, or its error: it writes nothing that could not be read.
StatusOr<std::string> write_shard_manifest(const ShardManifest& manifest);

// `dtype`: torch's name without "torch."; 4 for "float32". std::nullopt for dtypes that state does not use (quantized
// ones, and those of less than a byte).
std::optional<uint32_t> element_bytes(std::string_view dtype);

// Where each part begins in the bytes that are served; the last element is the total.
std::vector<uint64_t> shard_starts(const std::vector<brain::ShardEntry>& shards);

}  // namespace keepstep::state
