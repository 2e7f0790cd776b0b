// The transport over TCP: one connection per ordered pair of ranks, group and stream, dialled by the sender when it
// first has something to send, protected by the key of one generation.
//
// The listening socket is handed in: the agent bound it, so it outlives this process, and a successor accepts on the
// same address. Whatever an old generation left waiting in it does not have the key.
#pragma once

#include <memory>

#include "base/fd.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm {

// What a rank's connections can come to, for messages and in one group.
struct MostSockets {
  uint64_t connections = 0;           // if it talks to each of its peers elsewhere, both ways
  uint64_t bytes_per_connection = 0;  // of the kernel's buffers; 0: not known
};
MostSockets most_sockets(uint64_t peers_elsewhere, uint32_t streams = kStreams,
                         size_t socket_buffer_bytes = kSocketBufferBytes);

// `listener`: non-blocking; this takes it, so give it a copy.
std::unique_ptr<Transport> make_tcp_transport(TcpConfig config, Fd listener);

}  // namespace keepstep::comm
