// What a source of sharded state says it has: parts of named tensors, as text.
//
//   {"format": 1, "version": 118, "shards": [
//     ["model/head.weight", "bfloat16", [1024, 512], [256, 0], [256, 512]], ...]}
//
// Name, dtype, shape of the whole tensor, then offsets and lengths of the part (DCP's terms). The bytes of all parts
// are served one after another, without gaps and in this order, each in row-major order. brain/reshard/reshard_plan.h
// makes plans out of several such manifests.
//
// Nothing in the text is believed: every entry is checked before anything is allocated by its numbers, what is not
// listed above is an error, and the text is read without building a document of it.
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
// given every part fits its tensor, no two are the same, and the bytes of a tensor and of all parts fit 62 bits.
StatusOr<ShardManifest> parse_shard_manifest(std::string_view text);

// Text that parse_shard_manifest() takes, or its error: nothing is written that nobody could read.
StatusOr<std::string> write_shard_manifest(const ShardManifest& manifest);

// Of torch's name for it without "torch.": "float32" 4. Nothing for one that state is not kept in (quantized ones, and
// those of less than a byte).
std::optional<uint32_t> element_bytes(std::string_view dtype);

// Where each part begins in the bytes that are served; one more at the end: all of them.
std::vector<uint64_t> shard_starts(const std::vector<brain::ShardEntry>& shards);

}  // namespace keepstep::state
