// TLS over one socket, in steps that never block: the handshake, then bytes in both directions.
//
// One thread at a time, whatever the direction: OpenSSL has one state for both. Connection adds the lock, the waiting
// and the messages.
//
// write() makes whole records in memory (socket_bio.h), and flush() sends them. The next flush() finishes a half-sent
// record, from the same memory; without that flush() the connection is unusable. So for OpenSSL every write succeeds at
// once: SSL_MODE_ENABLE_PARTIAL_WRITE and SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, which concern repeated writes, have no
// effect here and are off.
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
  static constexpr size_t kRecordBytes = 16384;  // the largest payload of a record (RFC 8446, 5.1)
  // An AES-GCM key is safe for 2^24.5 full records (RFC 8446, 5.5).
  static constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

  // `fd`: a connected, non-blocking stream socket. `peer`: the peer's address.
  static StatusOr<TlsStream> create(std::shared_ptr<const TlsContext> context, Role role, Fd fd, std::string peer);

  // What to wait for with poll() before repeating the call: POLLIN or POLLOUT; 0 if it is done.
  using Wait = short;

  // When it returns 0, both sides have proved the key. UNAUTHENTICATED: the peer does not have our key or refused it.
  // FAILED_PRECONDITION: one side's key is for another purpose or generation; this is unproved, so use it only to
  // decide to try again. UNAVAILABLE: the connection broke, or the side that accepted it does not speak TLS.
  StatusOr<Wait> handshake();

  // Returns the number of bytes read, at most one record; 0: none arrived, wait for POLLIN. OUT_OF_RANGE: the peer
  // ended its direction. UNAVAILABLE: the connection broke. DATA_LOSS: the received data are not what the peer sent.
  StatusOr<size_t> read(std::span<char> to);
  // Whether there are bytes that were read from the socket but not yet returned by read(): poll() does not see them.
  bool has_pending() const;

  // Adds `bytes` (not empty) to what flush() sends: a record for each kRecordBytes. First changes the sending key (RFC
  // 8446, 4.6.3) if it was used for `records_per_key` records.
  Status write(std::string_view bytes);
  // Adds the notice that nothing follows.
  Status end_writes();
  // UNAVAILABLE: the connection broke; data that arrived before can still be read.
  StatusOr<Wait> flush();
  size_t unsent_bytes() const { return callbacks_->socket.out.size() - sent_; }

  // Derives bytes that only the two ends of this connection know (RFC 8446, 7.5); they differ for each `label`.
  void export_key(std::string_view label, std::span<unsigned char> key) const;
  // Returns the socket without TLS. FAILED_PRECONDITION unless everything written was sent and everything received was
  // read.
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

  struct Callbacks {  // OpenSSL writes here, so its address must not change when the stream moves
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
  uint64_t records_ = 0;  // under the current key
  uint64_t key_changes_ = 0;
};

}  // namespace keepstep::net
