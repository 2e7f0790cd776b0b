// libFuzzer: whatever comes over a connection, parsers and mirrors take no harm. Built with -DKEEPSTEP_FUZZ=ON.
//
// The first byte picks who reads: the handshake's messages, frames of parts through a real stream, or frames of pairs
// through a mirror whose other end is honest in between.

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "comm/tcp/pair_mirror.h"
#include "comm/tcp/part_streams.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {
namespace {

using Bytes = std::span<const std::byte>;

void fuzz_handshake(Bytes bytes) {
  if (bytes.size() >= kHelloBytes) {
    if (const auto hello = parse_hello(bytes.first<kHelloBytes>()); hello.has_value()) {
      KEEPSTEP_CHECK(hello->stream <= kMaxStreams, "a hello out of bounds");
    }
    (void)parse_answer(bytes.first<kHelloBytes>());
  }
}

// A stream with two receives posted, fed through a socket in pieces.
void fuzz_parts(Bytes bytes) {
  int fds[2];
  KEEPSTEP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "a socket pair");
  Fd far(fds[1]);
  ReceiveStream stream(FrameReader::unprotected(Fd(fds[0]), 1));
  std::vector<std::byte> buffers[2] = {std::vector<std::byte>(64), std::vector<std::byte>(5000)};
  PartRequest requests[2] = {{.key = {0, 1, 0}}, {.key = {0, 1, 1}}};
  Inbox inbox{.context = 0, .posted = {{&requests[0], buffers[0]}, {&requests[1], buffers[1]}}};
  std::optional<GivenUp> told;
  while (!bytes.empty() && stream.lost().empty() && !stream.stuck()) {
    const size_t n = std::min<size_t>(bytes.size(), 1 + static_cast<size_t>(bytes[0]) * 7);
    const ssize_t sent = send(far.get(), bytes.data(), n, MSG_NOSIGNAL);
    KEEPSTEP_CHECK(sent > 0, "a stream that is neither stuck nor lost reads on");
    bytes = bytes.subspan(static_cast<size_t>(sent));
    stream.advance(inbox, told);
    inbox.given_up = told.has_value();
  }
  far.reset();
  stream.advance(inbox, told);
}

void fuzz_pairs(Bytes bytes) {
  PairMirror mirror(1, 512);
  std::array<std::byte, 4096> memory;
  while (bytes.size() >= kFrameHeaderBytes) {
    const auto frame = parse_frame(bytes.first<kFrameHeaderBytes>(), 0);
    bytes = bytes.subspan(kFrameHeaderBytes);
    if (!frame.has_value()) {
      return;
    }
    if (frame->kind == FrameKind::kBytes) {
      mirror.incoming_bytes().add(std::span(memory).first(std::min<size_t>(frame->bytes, memory.size())));
      const auto target = mirror.target(*frame);
      if (!target.has_value()) {
        return;
      }
      const size_t n = std::min<size_t>(frame->bytes, bytes.size());
      std::memcpy(target->to, bytes.data(), n);
      bytes = bytes.subspan(n);
    }
    if (!mirror.apply(*frame)) {
      return;
    }
    // The end above reads everything and answers.
    PairBlock& in = mirror.incoming();
    in.receiver.offers_read = in.sender.offers_written.load();
    while (mirror.next().has_value()) {
    }
  }
}

}  // namespace
}  // namespace keepstep::comm::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace keepstep::comm::tcp;
  if (size == 0) {
    return 0;
  }
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      fuzz_handshake(bytes);
      break;
    case 1:
      fuzz_parts(bytes);
      break;
    default:
      fuzz_pairs(bytes);
  }
  return 0;
}
