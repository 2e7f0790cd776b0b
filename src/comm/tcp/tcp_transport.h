// The transport over TCP: one connection per ordered pair of ranks, group and stream, dialed by the sender when it
// first has something to send, and protected by the key of one generation.
//
// The listening socket is passed in: the agent bound it, so it outlives this process, and a successor accepts on the
// same address. Connections that an old generation left waiting on it do not have the key.
#pragma once

#include <memory>

#include "base/fd.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm {

// The most that a rank's connections can amount to, for messages and in one group.
struct MaxSockets {
  uint64_t connections = 0;           // if it talks to each of its peers on other nodes, both ways
  uint64_t bytes_per_connection = 0;  // of the kernel's buffers; 0: unknown
};
MaxSockets max_sockets(uint64_t peers_elsewhere, uint32_t streams = kStreams,
                       size_t socket_buffer_bytes = kSocketBufferBytes);

// `listener`: non-blocking; the transport owns it, so pass a copy.
std::unique_ptr<Transport> make_tcp_transport(TcpConfig config, Fd listener);

}  // namespace keepstep::comm
