// The bytes of the data plane: two messages in which the ends introduce themselves, then frames. Fixed layouts, little
// endian; docs/formats/wire_data.md specifies every byte. Pure functions over bytes; whatever a member sends, they
// allocate no memory and read only what they were given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "brain/types.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

inline constexpr size_t kHelloBytes = 40;  // also of an answer
inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr size_t kMaxFrameBytes = size_t{1} << 20;     // payload of one frame
inline constexpr uint64_t kMaxPartBytes = uint64_t{1} << 40;  // of one part, or message between two ranks
inline constexpr uint32_t kMaxRank = (uint32_t{1} << 31) - 2;
inline constexpr uint32_t kMaxStreams = 16;  // parts travel on streams 1 to this

// Who connects, to whom, for what.
struct Hello {
  brain::Identity identity;
  Rank from = 0;
  Rank to = 0;
  uint32_t stream = 0;   // 0: pairs; others: parts
  uint64_t context = 0;  // of the group whose parts it will carry; 0 for pairs
  Protection protection = Protection::kTls;
  bool operator==(const Hello&) const = default;
};

enum class Verdict : uint8_t {
  kWelcome = 0,
  kUnknownRank = 1,      // the rank or stream does not exist, is not this one, or is already connected
  kOtherProtection = 2,  // this end protects frames in another way
};
// The other end's reply: the hello that it read, but with its own protection, and its verdict.
struct Answer {
  Verdict verdict = Verdict::kWelcome;
  Hello hello;
};

enum class FrameKind : uint16_t {
  kPart = 1,      // bytes of a part, at `offset` of `total`
  kGiveUp = 2,    // rank `part` ended the group `context`; `operation`: 0, or 1 + the rank to which its link broke
  kOffer = 3,     // offer number `operation`: tag `part`, `total` bytes, in `context`
  kGrant = 4,     // grant number `operation`: offer `offset`, capacity `total`
  kBytes = 5,     // bytes of granted messages, at position `offset` in the stream of all of them
  kRead = 6,      // counters: offers_read `operation`; grants_read `total` of the other direction
  kPairEnded = 7  // rank `part` gave up messages from sender to receiver (`operation` 0) or back (1)
};

struct Frame {
  FrameKind kind = FrameKind::kPart;
  uint32_t part = 0;
  uint32_t bytes = 0;  // of payload after the header
  uint64_t context = 0;
  uint64_t operation = 0;
  uint64_t offset = 0;
  uint64_t total = 0;
  bool operator==(const Frame&) const = default;

  PartKey key() const { return {context, operation, part}; }
};

void encode(const Hello& hello, std::span<std::byte, kHelloBytes> to);
void encode(const Answer& answer, std::span<std::byte, kHelloBytes> to);
void encode(const Frame& frame, std::span<std::byte, kFrameHeaderBytes> to);

// std::nullopt if the bytes are no such message: wrong magic or version, a reserved field that is not zero, a kind that
// does not belong on this stream, or sizes that contradict each other or exceed a limit.
std::optional<Hello> parse_hello(std::span<const std::byte, kHelloBytes> from);
std::optional<Answer> parse_answer(std::span<const std::byte, kHelloBytes> from);
std::optional<Frame> parse_frame(std::span<const std::byte, kFrameHeaderBytes> from, uint32_t stream);

}  // namespace keepstep::comm::tcp
