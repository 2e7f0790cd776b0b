// The messages between a target and a source on different nodes (docs/design/hydration.md). The bytes of a request or
// an answer are these structs as they are in memory.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "state/channel.h"

namespace keepstep::state {

static_assert(std::endian::native == std::endian::little, "these structs go over the wire as they are");

inline constexpr uint32_t kRemoteLayoutVersion = 0x6b740001;  // changes with this file
// Outstanding requests of a target at one source on another node: twice as many as on its own node, for the longer way.
inline constexpr uint32_t kRemoteWindow = 2 * kSlots;

// In addition to the kinds of channel.h.
enum class RemoteKind : uint32_t {
  kLook = 16,  // what is published?
  kBye = 17,   // no request follows; gets no answer
  kStop = 18,  // from the source's own rank only: stop serving; gets no answer
};

// In addition to ReplyCode::kOk. The answer's bytes are then text: why this source is no longer usable.
inline constexpr uint32_t kReplyRefused = 16;
inline constexpr size_t kMaxRefusalBytes = 512;

struct RemoteRequest {
  uint64_t number = 0;  // of the request between these two, from 1; its answer has the same
  uint64_t identity = 0;
  uint64_t version = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t kind = 0;  // Kind or RemoteKind
  uint32_t layout = kRemoteLayoutVersion;
};
static_assert(sizeof(RemoteRequest) == 48 && std::is_trivially_copyable_v<RemoteRequest>);

struct RemoteAnswer {
  uint64_t number = 0;
  uint64_t offset = 0;    // as in the request that the source answered
  uint64_t bytes = 0;     // for a refusal: of its text
  uint64_t checksum = 0;  // XXH3 over the source's own bytes
  // Answers to kLook.
  uint64_t version = 0;
  uint64_t manifest_bytes = 0;
  uint64_t entries = 0;
  uint64_t total_bytes = 0;
  uint64_t sizes_checksum = 0;
  uint32_t code = 0;  // ReplyCode::kOk or kReplyRefused
  uint32_t layout = kRemoteLayoutVersion;
};
static_assert(sizeof(RemoteAnswer) == 80 && std::is_trivially_copyable_v<RemoteAnswer>);

// The bytes of each unit that a request counts.
inline uint64_t unit_of(uint32_t kind) {
  const bool counts_entries =
      kind == static_cast<uint32_t>(Kind::kSizes) || kind == static_cast<uint32_t>(Kind::kDigests);
  return counts_entries ? sizeof(uint64_t) : 1;
}

}  // namespace keepstep::state
