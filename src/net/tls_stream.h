// TLS over one socket, as steps that never wait: the handshake, then bytes in both directions.
//
// One thread at a time, whatever the direction: OpenSSL keeps one state for both. Connection adds the lock, the waiting
// and the messages.
//
// write() makes whole records in memory (socket_bio.h), and flush() sends them. A record that is half sent is finished
// by the next flush(), from the same memory; if there is none, the connection is of no use any more. So OpenSSL never
// sees a write that did not succeed at once: SSL_MODE_ENABLE_PARTIAL_WRITE and SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER,
// which are about repeating such a write, have nothing to do here and are off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/status.h"
#include "net/socket_bio.h"
#include "net/tls_context.h"

namespace keepstep::net {

class TlsStream {
 public:
  static constexpr size_t kRecordBytes = 16384;  // the most that a record carries (RFC 8446, 5.1)
  // A key of AES-GCM is good for 2^24.5 full records (RFC 8446, 5.5).
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

  // Over `fd`, a connected and non-blocking stream socket, with the peer at address `peer`.
  static StatusOr<TlsStream> create(std::shared_ptr<const TlsContext> context, Role role, Fd fd, std::string peer);

  // What to wait for with poll() before the same call is made again: POLLIN, POLLOUT, or 0: it is done.
  using Wait = short;

  // After 0 both sides have proved the key. UNAUTHENTICATED: the peer does not have our key or refused it.
  // FAILED_PRECONDITION: one side's key is for another purpose or generation; not proved, so believe it only to try
  // again.
  // UNAVAILABLE: the connection broke, or the side that accepted it does not speak TLS.
  StatusOr<Wait> handshake();

  // The bytes that came, at most one record; 0: none did, wait for POLLIN. OUT_OF_RANGE: the peer said that it sends no
  // more. UNAVAILABLE: the connection broke. DATA_LOSS: what came is not what the peer sent.
  StatusOr<size_t> read(std::span<char> to);
  // Whether bytes have left the socket that read() has not returned yet: poll() knows nothing of them.
  bool has_pending() const;

  // Adds `bytes`, of which there are some, to what flush() sends: a record for each kRecordBytes. Before it the
  // sender's key is changed (RFC 8446, 4.6.3) if it was used for `records_per_key` records.
  Status write(std::string_view bytes);
  // Adds that nothing follows.
  Status end_writes();
  // UNAVAILABLE: the connection broke; what came before that can still be read.
  StatusOr<Wait> flush();
  size_t unsent_bytes() const { return callbacks_->socket.out.size() - sent_; }

  // Bytes that both ends of this connection know and nobody else (RFC 8446, 7.5); another `label`, others.
  void export_key(std::string_view label, std::span<unsigned char> key) const;
  // The socket without TLS, when all that was written is sent, and all that came is read: else FAILED_PRECONDITION.
  StatusOr<Fd> take_socket();

  void set_records_per_key(uint64_t records) { records_per_key_ = records; }
  uint64_t key_changes() const { return key_changes_; }

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

 private:
  TlsStream(std::shared_ptr<const TlsContext> context, Fd fd, std::string peer)
      : context_(std::move(context)), fd_(std::move(fd)), peer_(std::move(peer)) {}

  Status handshake_failed(int error) const;
  Status read_failed(int error) const;
  Status change_key();

  struct Callbacks {  // what OpenSSL writes to: stays where it is when the stream is moved
    BioSocket socket;
    TlsContext::Complaint complaint;
  };

  std::shared_ptr<const TlsContext> context_;
  Fd fd_;
  std::string peer_;
  std::unique_ptr<Callbacks> callbacks_ = std::make_unique<Callbacks>();
  SslPointer ssl_;
  size_t sent_ = 0;  // of callbacks_->socket.out
  uint64_t records_per_key_ = kRecordsPerKey;
  uint64_t records_ = 0;  // under the key of now
  uint64_t key_changes_ = 0;
};

}  // namespace keepstep::net
