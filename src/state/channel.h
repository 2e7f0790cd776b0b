// The byte layout of a source worker's region, and the protocol spoken over it. Internal to src/state.
//
// One region = one Board: a header that describes what is published, and kChannels channels. A target takes a channel
// by compare-and-swap of its `owner`, asks up to kSlots requests ahead, and gives the channel back. Request number n
// uses slot n % kSlots: the target writes the request, then stores n to `asked` and rings the board's bell; the source
// writes reply and bytes, then stores n to `answered`. Numbers continue from one owner to the next, so an owner gives a
// channel back only after all its own requests were answered.
//
// Everything here is written by other processes: each side copies a field once and checks it before use. All fields are
// atomics (relaxed, except the words that publish others), so a stranger's writes are garbage to be refused and never
// undefined behavior. All words are initially zero.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "brain/types.h"

namespace keepstep::state {

inline constexpr uint32_t kLayoutVersion = 0x6b730003;  // changes with this file
inline constexpr uint32_t kChannels = 4;                // targets of this node served at the same time
inline constexpr uint32_t kRelayChannel = kChannels;    // the Relay's: remote targets wait for no local one
inline constexpr uint32_t kSlots = 4;                   // outstanding requests per target; a power of two
inline constexpr size_t kSlotBytes = size_t{1} << 20;   // the largest reply: one chunk
inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
inline constexpr int64_t kNapNs = 2'000'000;  // the longest sleep between checks for an interruption
// A source silent for this long is lost. Far above what one request costs: a digest of 20 GB takes about 2 s.
inline constexpr int64_t kSilenceNs = 5'000'000'000;

// What a request asks for. `offset` and `bytes` count bytes of the manifest (kManifest) or of the entries in sequence,
// without gaps (kData); for kSizes and kDigests they count entries, and the reply has 8 bytes for each.
enum class Kind : uint32_t { kManifest = 1, kSizes = 2, kDigests = 3, kData = 4 };

enum class ReplyCode : uint32_t {
  kOk = 0,
  kWrongIdentity = 1,  // another identity, or another version, is published here
  kMalformed = 2,      // unknown kind, out of bounds, larger than a slot, or more requests outstanding than slots
};

struct Request {
  Kind kind = Kind::kData;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Request&) const = default;
};

struct Slot {
  // Written by the target.
  alignas(64) std::atomic<uint64_t> identity;
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> bytes;
  std::atomic<uint32_t> kind;
  // Written by the source. `offset` and `bytes` are those it answered, `checksum` is XXH3 over the reply.
  alignas(64) std::atomic<uint64_t> reply_offset;
  std::atomic<uint64_t> reply_bytes;
  std::atomic<uint64_t> checksum;
  std::atomic<uint32_t> code;
};

struct Channel {
  // Written by targets. `owner` is 0, or edition << 32 | the target's number.
  alignas(64) std::atomic<uint64_t> owner;
  std::atomic<uint32_t> asked;
  std::atomic<uint32_t> target_sleeps;
  // Written by the source; a futex.
  alignas(64) std::atomic<uint32_t> answered;
  Slot slots[kSlots];
};

struct Header {
  // Odd while something is published; incremented by each publish and each withdrawal. A futex.
  alignas(64) std::atomic<uint32_t> edition;
  std::atomic<uint32_t> layout_version;
  std::atomic<uint64_t> identity;
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> manifest_bytes;
  std::atomic<uint64_t> entries;
  std::atomic<uint64_t> total_bytes;
  std::atomic<uint64_t> sizes_checksum;  // XXH3 over the entries' sizes, 8 bytes each
  std::atomic<uint32_t> interrupted;     // 1: the last withdrawal was because of an interruption
  // Incremented by each request; the source sleeps on it.
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> source_sleeps;
  // Incremented each time a channel is given back; targets that want one sleep on it.
  alignas(64) std::atomic<uint32_t> given_back;
};

struct Board {
  Header header;
  Channel channels[kChannels + 1];
  alignas(64) std::byte bytes[kChannels + 1][kSlots][kSlotBytes];
};
static_assert((kSlots & (kSlots - 1)) == 0, "request numbers wrap around");
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline Board& board_at(std::byte* region) {
  KEEPSTEP_CHECK(reinterpret_cast<uintptr_t>(region) % alignof(Board) == 0, "the region must be aligned to 64 bytes");
  return *reinterpret_cast<Board*>(region);
}

inline uint64_t pack(brain::Identity identity) { return uint64_t{identity.term} << 32 | identity.generation; }

inline bool is_published(uint32_t edition) { return edition % 2 == 1; }

// a - b for numbers that wrap around.
inline int32_t distance(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

}  // namespace keepstep::state
