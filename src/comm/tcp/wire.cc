#include "comm/tcp/wire.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace keepstep::comm::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little endian, and so far every machine is");

constexpr uint32_t kHelloMagic = 0x4844'534b;   // "KSDH"
constexpr uint32_t kAnswerMagic = 0x4144'534b;  // "KSDA"
constexpr uint32_t kProofMagic = 0x5044'534b;   // "KSDP"
constexpr uint32_t kFrameMagic = 0x4644'534b;   // "KSDF"
constexpr uint16_t kVersion = 3;

struct WireHello {
  uint32_t magic;
  uint16_t version;
  uint16_t stream;
  uint32_t term;
  uint32_t generation;
  uint32_t from;
  uint32_t to;
  char nonce[kNonce];
  uint64_t context;
};
struct WireAnswer {
  uint32_t magic;
  uint16_t version;
  uint16_t verdict;
  char nonce[kNonce];
  char proof[kDigest];
};
struct WireProof {
  uint32_t magic;
  uint32_t reserved;
  char proof[kDigest];
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
static_assert(sizeof(WireHello) == kHelloBytes && sizeof(WireAnswer) == kAnswerBytes);
static_assert(sizeof(WireProof) == kProofBytes && sizeof(WireFrame) == kFrameHeaderBytes);

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

}  // namespace

std::string Hello::claim() const {
  return absl::StrCat("keepstep data ", kVersion, ": ", identity.term, "/", identity.generation, " ", from, ">", to,
                      ".", stream, "#", context);
}

void encode(const Hello& hello, std::span<std::byte, kHelloBytes> to) {
  WireHello wire{kHelloMagic,
                 kVersion,
                 static_cast<uint16_t>(hello.stream),
                 hello.identity.term,
                 hello.identity.generation,
                 hello.from,
                 hello.to,
                 {},
                 hello.context};
  std::memcpy(wire.nonce, hello.nonce.data(), kNonce);
  store(wire, to);
}

void encode(const Answer& answer, std::span<std::byte, kAnswerBytes> to) {
  WireAnswer wire{kAnswerMagic, kVersion, static_cast<uint16_t>(answer.verdict), {}, {}};
  std::memcpy(wire.nonce, answer.nonce.data(), kNonce);
  std::memcpy(wire.proof, answer.proof.data(), kDigest);
  store(wire, to);
}

void encode(const Proof& proof, std::span<std::byte, kProofBytes> to) {
  WireProof wire{kProofMagic, 0, {}};
  std::memcpy(wire.proof, proof.proof.data(), kDigest);
  store(wire, to);
}

void encode(const Frame& frame, std::span<std::byte, kFrameHeaderBytes> to) {
  store(WireFrame{kFrameMagic, static_cast<uint16_t>(frame.kind), 0, frame.part, frame.bytes, frame.context,
                  frame.operation, frame.offset, frame.total},
        to);
}

std::optional<Hello> parse_hello(std::span<const std::byte, kHelloBytes> from) {
  const auto wire = load<WireHello>(from);
  if (wire.magic != kHelloMagic || wire.version != kVersion || wire.stream > kMaxStreams ||
      (wire.stream == 0 && wire.context != 0)) {
    return std::nullopt;
  }
  Hello hello{{wire.term, wire.generation}, wire.from, wire.to, wire.stream, {}, wire.context};
  std::memcpy(hello.nonce.data(), wire.nonce, kNonce);
  return hello;
}

std::optional<Answer> parse_answer(std::span<const std::byte, kAnswerBytes> from) {
  const auto wire = load<WireAnswer>(from);
  if (wire.magic != kAnswerMagic || wire.version != kVersion ||
      wire.verdict > static_cast<uint16_t>(Verdict::kUnknownRank)) {
    return std::nullopt;
  }
  Answer answer{static_cast<Verdict>(wire.verdict), {}, {}};
  std::memcpy(answer.nonce.data(), wire.nonce, kNonce);
  std::memcpy(answer.proof.data(), wire.proof, kDigest);
  return answer;
}

std::optional<Proof> parse_proof(std::span<const std::byte, kProofBytes> from) {
  const auto wire = load<WireProof>(from);
  if (wire.magic != kProofMagic || wire.reserved != 0) {
    return std::nullopt;
  }
  Proof proof;
  std::memcpy(proof.proof.data(), wire.proof, kDigest);
  return proof;
}

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
