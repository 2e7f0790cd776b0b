// The configuration of a TCP transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/socket/tcp_socket.h"
#include "brain/types.h"
#include "net/shared_key.h"

namespace keepstep::comm {

// How traffic between nodes is protected. Both need the generation's key.
enum class Protection : uint8_t {
  kTls = 0,  // encrypted
  kMac = 1,  // readable, but nobody else can change it: for a private cluster network
};

inline constexpr uint32_t kStreams = 2;
inline constexpr size_t kSocketBufferBytes = size_t{2} << 20;

struct TcpConfig {
  brain::Identity identity;  // of the generation
  brain::Rank self = 0;
  std::vector<SocketAddress> addresses;  // by rank: where it listens
  net::SharedKey key;                    // SharedKey::data of this generation
  Protection protection = Protection::kTls;
  uint32_t streams = kStreams;                      // for parts, per ordered pair of ranks; 1 to tcp::kMaxStreams
  size_t stripe_bytes = 256 << 10;                  // larger parts are cut and use all streams; at most 1 MiB
  size_t socket_buffer_bytes = kSocketBufferBytes;  // of the kernel, each way; 0, or not allowed: the system tunes it
  size_t message_frame_bytes = 256 << 10;           // messages are cut into frames of this size; at most 1 MiB
  int64_t patience_ns = 2'000'000'000;   // from a broken link to an error, so the interruption can arrive first
  int64_t connect_ns = 15'000'000'000;   // time without a connection to a peer until the link is considered broken
  int64_t silent_ns = 10'000'000'000;    // time without an acknowledgement until the link is considered broken
  int64_t handshake_ns = 5'000'000'000;  // for a stranger to prove the key, and again to introduce itself
  size_t max_strangers = 128;            // connections that have not proved the key yet
  size_t max_strangers_per_source = 64;  // per IP address; more than the ranks of a node dial at once
};

}  // namespace keepstep::comm
