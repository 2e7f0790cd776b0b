#include "comm/tcp/wire.h"

#include <bit>
#include <cstring>

namespace keepstep::comm::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little endian, and so far every machine is");

constexpr uint32_t kHelloMagic = 0x4844'534b;   // "KSDH"
constexpr uint32_t kAnswerMagic = 0x4144'534b;  // "KSDA"
constexpr uint32_t kFrameMagic = 0x4644'534b;   // "KSDF"
constexpr uint16_t kVersion = 4;

struct WireHello {
  uint32_t magic;
  uint16_t version;
  uint8_t protection;
  uint8_t verdict;  // zero in a hello
  uint32_t term;
  uint32_t generation;
  uint32_t from;
  uint32_t to;
  uint32_t stream;
  uint32_t reserved;
  uint64_t context;
};
struct WireFrame {
  uint32_t magic;
  uint16_t kind;
  uint16_t reserved;
  uint32_t part;
  uint32_t bytes;
  uint64_t context;
  uint64_t operation;
  uint64_t offset;
  uint64_t total;
};
static_assert(sizeof(WireHello) == kHelloBytes && sizeof(WireFrame) == kFrameHeaderBytes);

template <class Wire, size_t kBytes>
Wire load(std::span<const std::byte, kBytes> from) {
  static_assert(sizeof(Wire) == kBytes);
  Wire wire;
  std::memcpy(&wire, from.data(), kBytes);
  return wire;
}
template <class Wire, size_t kBytes>
void store(const Wire& wire, std::span<std::byte, kBytes> to) {
  static_assert(sizeof(Wire) == kBytes);
  std::memcpy(to.data(), &wire, kBytes);
}

// Do these sizes go together? What a kind does not use must be zero.
bool sound(const Frame& frame, uint32_t stream) {
  const bool payload = frame.kind == FrameKind::kPart || frame.kind == FrameKind::kBytes;
  if (frame.bytes > kMaxFrameBytes || (!payload && frame.bytes != 0)) {
    return false;
  }
  const bool for_parts = frame.kind == FrameKind::kPart || frame.kind == FrameKind::kGiveUp;
  if (for_parts != (stream != 0)) {
    return false;
  }
  switch (frame.kind) {
    case FrameKind::kPart:
      return frame.total <= kMaxPartBytes && frame.offset <= frame.total && frame.bytes <= frame.total - frame.offset &&
             (frame.bytes > 0 || frame.total == 0);
    case FrameKind::kGiveUp:
      return frame.part <= kMaxRank && frame.operation <= uint64_t{kMaxRank} + 1 && frame.offset == 0 &&
             frame.total == 0;
    case FrameKind::kOffer:
      return frame.offset == 0 && frame.total <= kMaxPartBytes;
    case FrameKind::kGrant:
      return frame.context == 0 && frame.part == 0;
    case FrameKind::kBytes:
      return frame.bytes > 0 && frame.context == 0 && frame.part == 0 && frame.operation == 0 && frame.total == 0;
    case FrameKind::kRead:
      return frame.context == 0 && frame.part == 0 && frame.offset == 0;
    case FrameKind::kPairEnded:
      return frame.part <= kMaxRank && frame.context == 0 && frame.operation <= 1 && frame.offset == 0 &&
             frame.total == 0;
  }
  return false;
}

WireHello wire_of(uint32_t magic, const Hello& hello, Verdict verdict) {
  return {magic,
          kVersion,
          static_cast<uint8_t>(hello.protection),
          static_cast<uint8_t>(verdict),
          hello.identity.term,
          hello.identity.generation,
          hello.from,
          hello.to,
          hello.stream,
          0,
          hello.context};
}

std::optional<Answer> parse(uint32_t magic, std::span<const std::byte, kHelloBytes> from) {
  const auto wire = load<WireHello>(from);
  if (wire.magic != magic || wire.version != kVersion || wire.reserved != 0 || wire.stream > kMaxStreams ||
      wire.protection > static_cast<uint8_t>(Protection::kMac) ||
      wire.verdict > static_cast<uint8_t>(Verdict::kOtherProtection) || (wire.stream == 0 && wire.context != 0)) {
    return std::nullopt;
  }
  return Answer{static_cast<Verdict>(wire.verdict),
                {{wire.term, wire.generation},
                 wire.from,
                 wire.to,
                 wire.stream,
                 wire.context,
                 static_cast<Protection>(wire.protection)}};
}

}  // namespace

void encode(const Hello& hello, std::span<std::byte, kHelloBytes> to) {
  store(wire_of(kHelloMagic, hello, Verdict::kWelcome), to);
}

void encode(const Answer& answer, std::span<std::byte, kHelloBytes> to) {
  store(wire_of(kAnswerMagic, answer.hello, answer.verdict), to);
}

void encode(const Frame& frame, std::span<std::byte, kFrameHeaderBytes> to) {
  store(WireFrame{kFrameMagic, static_cast<uint16_t>(frame.kind), 0, frame.part, frame.bytes, frame.context,
                  frame.operation, frame.offset, frame.total},
        to);
}

std::optional<Hello> parse_hello(std::span<const std::byte, kHelloBytes> from) {
  const std::optional<Answer> hello = parse(kHelloMagic, from);
  return hello.has_value() && hello->verdict == Verdict::kWelcome ? std::optional(hello->hello) : std::nullopt;
}

std::optional<Answer> parse_answer(std::span<const std::byte, kHelloBytes> from) { return parse(kAnswerMagic, from); }

std::optional<Frame> parse_frame(std::span<const std::byte, kFrameHeaderBytes> from, uint32_t stream) {
  const auto wire = load<WireFrame>(from);
  if (wire.magic != kFrameMagic || wire.reserved != 0 || wire.kind < static_cast<uint16_t>(FrameKind::kPart) ||
      wire.kind > static_cast<uint16_t>(FrameKind::kPairEnded)) {
    return std::nullopt;
  }
  const Frame frame{
      static_cast<FrameKind>(wire.kind), wire.part, wire.bytes, wire.context, wire.operation, wire.offset, wire.total};
  return sound(frame, stream) ? std::optional(frame) : std::nullopt;
}

}  // namespace keepstep::comm::tcp
