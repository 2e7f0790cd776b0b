// A connection between two members of a job: whole messages in both directions, over TLS.
//
// Both sides have proved the key before one of these exists; that the peer is the one that is meant is for the first
// message to show (greeting.h).
//
// What a message looks like on the way: message_reader.h. Where many connections share a thread that must not wait:
// hub.h.
//
// One thread may send while another one receives. OpenSSL allows a single thread on a connection, so each step of
// either (a batch of records, a record) holds a lock; no step waits, and no thread holds the lock while it waits in
// poll(). A thread that waits to receive never keeps one from sending, nor the other way round.
//
// Nothing is sent by itself. To find out whether a silent peer is alive, send something that it answers, and look at
// silence(). Over TCP the kernel asks a silent machine (tcp_socket.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/address.h"
#include "net/deadline.h"
#include "net/message_reader.h"
#include "net/tls_stream.h"

namespace keepstep::net {

struct ConnectionOptions {
  size_t max_message_bytes = size_t{4} << 20;  // either way
  uint64_t records_per_key = TlsStream::kRecordsPerKey;
};

// Connects and proves the key, both ways; blocks up to `deadline`. UNAVAILABLE: no listener, one that does not speak
// TLS, or it broke off, perhaps because it has too many connections that proved nothing yet: try again.
// UNAUTHENTICATED: the peer does not have our key, or refused it. DEADLINE_EXCEEDED. PERMISSION_DENIED: a unix socket
// of another user.
StatusOr<TlsStream> connect_tls(const Address& address, std::shared_ptr<const TlsContext> context, Deadline deadline);
// The second half of it, over a socket that is connected to `peer`.
StatusOr<TlsStream> prove_key(Fd fd, std::string peer, std::shared_ptr<const TlsContext> context, Deadline deadline);

class Connection {
 public:
  // connect_tls(), with its errors.
  static StatusOr<std::unique_ptr<Connection>> connect(const Address& address,
                                                       std::shared_ptr<const TlsContext> context,
                                                       ConnectionOptions options, Deadline deadline);
  // Of a stream whose handshake is done.
  Connection(TlsStream stream, ConnectionOptions options);

  // No thread may be in a call. The peer sees a broken connection unless end_sends() was called.
  ~Connection() = default;

  // Hands the message to the system, whole. One thread at a time. INVALID_ARGUMENT: it is longer than the limit, and
  // nothing was sent. Any other error ends sending: DEADLINE_EXCEEDED, which ends the connection too, because half a
  // message may be out; UNAVAILABLE: the connection broke; CANCELLED: abort().
  Status send(std::string_view message, Deadline deadline);

  // Tells the peer that nothing follows: its receive() returns OUT_OF_RANGE after the last message. Instead of send(),
  // with its errors. We can still receive; to be sure that the peer got all, receive until OUT_OF_RANGE.
  Status end_sends(Deadline deadline);

  // The next message, an empty one too (a hub's sign of life). One thread at a time. DEADLINE_EXCEEDED: none came whole
  // yet; call again, nothing is lost. Any other error ends receiving: OUT_OF_RANGE: the peer ended the connection in
  // order; UNAVAILABLE: it broke; DATA_LOSS: what came is not what the peer sent; INVALID_ARGUMENT: a message over the
  // limit, which ends the connection; CANCELLED: abort().
  StatusOr<std::string> receive(Deadline deadline);

  // Ends the connection at once, from any thread; calls under way return CANCELLED.
  void abort();

  // How long nothing has been received. Bytes that came but were not asked for by receive() do not count.
  std::chrono::nanoseconds silence() const;
  // How often this side changed the key that it sends with. Not while a call is under way.
  uint64_t key_changes() const { return stream_.key_changes(); }
  // The peer's address: "10.0.0.7:40312"; of a unix socket "unix:PATH".
  const std::string& peer() const { return stream_.peer(); }

 private:
  static constexpr size_t kBatchBytes = 4 * TlsStream::kRecordBytes;  // between two calls of the system

  Status write_all(std::string_view bytes, Deadline deadline);
  Status flush_all(Deadline deadline);
  Status send_failed(Status why);
  Status receive_failed(Status why);
  Status cancelled() const;

  std::mutex mutex_;  // for the stream
  TlsStream stream_;
  const size_t max_message_bytes_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int64_t> heard_ns_;

  // Of the thread that sends.
  Status send_failure_;

  // Of the thread that receives.
  Status receive_failure_;
  MessageReader reader_;
};

}  // namespace keepstep::net
