// What a TCP transport needs to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/tcp_socket.h"
#include "base/token.h"
#include "brain/types.h"

namespace keepstep::comm {

inline constexpr uint32_t kStreams = 2;
inline constexpr size_t kSocketBufferBytes = size_t{2} << 20;

struct TcpConfig {
  brain::Identity identity;  // of the generation
  brain::Rank self = 0;
  std::vector<SocketAddress> addresses;  // by rank: where it listens
  JobToken token;
  uint32_t streams = kStreams;      // for parts, per ordered pair of ranks; 1 to tcp::kMaxStreams
  size_t stripe_bytes = 256 << 10;  // parts above this are cut and go over all streams; at most 1 MiB
  size_t socket_buffer_bytes =
      kSocketBufferBytes;                  // of the kernel, each way; 0, or not allowed: as the system tunes it
  size_t message_frame_bytes = 256 << 10;  // messages are cut into such frames; at most 1 MiB
  int64_t patience_ns = 2'000'000'000;     // from a broken link to an error, for the interruption to come
  int64_t connect_ns = 15'000'000'000;     // without any connection to a peer this is an error: the link is broken
  int64_t silent_ns = 10'000'000'000;      // without an acknowledgement of what was sent the link is broken
  int64_t handshake_ns = 5'000'000'000;    // for a stranger to introduce itself
  size_t most_strangers = 1024;            // connections in a handshake at one time
};

}  // namespace keepstep::comm
