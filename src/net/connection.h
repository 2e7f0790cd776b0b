// A connection between two members of a job: whole messages in both directions, over TLS.
//
// Both sides have proved the key before a Connection exists. Only the first message shows whether the peer is the
// intended one (greeting.h). The wire format of messages is in message_reader.h. For many connections on one thread
// that must not wait, use hub.h.
//
// One thread may send while another one receives. OpenSSL allows only one thread at a time on a connection, so each
// step (sending a batch of records, receiving one record) holds a lock. No thread holds the lock while it waits in
// poll(), so a waiting receiver never blocks a sender, nor vice versa.
//
// Nothing is sent automatically. To find out whether a silent peer is alive, send something that it answers, and check
// silence(). Over TCP the kernel probes a silent machine (tcp_socket.h).
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
  size_t max_message_bytes = size_t{4} << 20;  // in either direction
  uint64_t records_per_key = TlsStream::kRecordsPerKey;
};

// Connects and proves the key, both ways; blocks up to `deadline`. UNAVAILABLE: there is no listener, it does not speak
// TLS, or it broke off the connection, perhaps because it has too many unproved ones: try again. UNAUTHENTICATED: the
// peer does not have our key, or refused it. DEADLINE_EXCEEDED. PERMISSION_DENIED: the unix socket belongs to another
// user.
StatusOr<TlsStream> connect_tls(const Address& address, std::shared_ptr<const TlsContext> context, Deadline deadline);
// Only proves the key, over a socket that is connected to `peer`.
StatusOr<TlsStream> prove_key(Fd fd, std::string peer, std::shared_ptr<const TlsContext> context, Deadline deadline);

class Connection {
 public:
  // Like connect_tls(), with the same errors.
  static StatusOr<std::unique_ptr<Connection>> connect(const Address& address,
                                                       std::shared_ptr<const TlsContext> context,
                                                       ConnectionOptions options, Deadline deadline);
  // Wraps a stream whose handshake is done.
  Connection(TlsStream stream, ConnectionOptions options);

  // No call may be in progress. The peer sees a broken connection unless end_sends() was called.
  ~Connection() = default;

  // Hands the whole message to the system. One thread at a time. INVALID_ARGUMENT: it is longer than the limit, and
  // nothing was sent. After any other error nothing more can be sent: DEADLINE_EXCEEDED, which ends the connection too,
  // because half a message may have left; UNAVAILABLE: the connection broke; CANCELLED: abort().
  Status send(std::string_view message, Deadline deadline);

  // Tells the peer that nothing follows: its receive() returns OUT_OF_RANGE after the last message. The same threading
  // rule and errors as send(). We can still receive; to be sure that the peer got everything, receive until
  // OUT_OF_RANGE.
  Status end_sends(Deadline deadline);

  // The next message, even an empty one (a hub's sign of life). One thread at a time. DEADLINE_EXCEEDED: no whole
  // message arrived yet; call again, nothing is lost. After any other error nothing more can be received: OUT_OF_RANGE:
  // the peer ended the connection cleanly; UNAVAILABLE: it broke; DATA_LOSS: the received data are not what the peer
  // sent; INVALID_ARGUMENT: a message over the limit, which ends the connection; CANCELLED: abort().
  StatusOr<std::string> receive(Deadline deadline);

  // Ends the connection at once, from any thread; calls in progress return CANCELLED.
  void abort();

  // The time since bytes were last received. Bytes that no receive() has read yet do not count.
  std::chrono::nanoseconds silence() const;
  // How many times this side changed its sending key. Do not call it while another call is in progress.
  uint64_t key_changes() const { return stream_.key_changes(); }
  // The peer's address: "10.0.0.7:40312", or "unix:PATH" for a unix socket.
  const std::string& peer() const { return stream_.peer(); }

 private:
  static constexpr size_t kBatchBytes = 4 * TlsStream::kRecordBytes;  // between two system calls

  Status write_all(std::string_view bytes, Deadline deadline);
  Status flush_all(Deadline deadline);
  Status send_failed(Status why);
  Status receive_failed(Status why);
  Status cancelled() const;

  std::mutex mutex_;  // guards the stream
  TlsStream stream_;
  const size_t max_message_bytes_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int64_t> heard_ns_;

  // Used by the sending thread only.
  Status send_failure_;

  // Used by the receiving thread only.
  Status receive_failure_;
  MessageReader reader_;
};

}  // namespace keepstep::net
