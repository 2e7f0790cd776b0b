// Writes frames to one connection, protected by TLS or by MACs. One thread; nothing here waits.
//
// With TLS a frame is encrypted first, at most kBatchBytes of frames ahead of the socket. With MACs the header and the
// payload each get a tag, and the payload is sent from where it is. Either way a frame that has begun must be continued
// unchanged: the other end counts records or tags.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "base/fd.h"
#include "base/status.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wire.h"
#include "comm/transport.h"
#include "net/mac.h"
#include "net/tls_stream.h"

namespace keepstep::comm::tcp {

// A frame to send. Its payload is the sender's memory.
class OutgoingFrame {
 public:
  // `request` (may be null) has its `left` reduced by `frame.bytes` once these are with the system.
  OutgoingFrame(const Frame& frame, const std::byte* payload, PartRequest* request);

  bool begun() const { return begun_; }
  void copy();                           // copies the payload: its original memory is not touched again
  void disown() { request_ = nullptr; }  // the request is no longer needed

 private:
  friend class FrameWriter;
  void left();  // all of it is with the system

  std::array<std::byte, kFrameHeaderBytes + net::Mac::kTagBytes> header_;
  const std::byte* payload_;
  size_t bytes_;  // of the payload
  PartRequest* request_;
  std::unique_ptr<std::byte[]> own_;  // the payload, once copied
  net::Mac::Tag tag_;                 // of the payload
  bool begun_ = false;
  size_t gone_ = 0;  // how many bytes have been encrypted, or are with the system
};

class FrameWriter {
 public:
  static constexpr size_t kBatchBytes = 128 << 10;  // twice as many are slower: they do not fit in the cache

  // Over a connection whose ends have introduced themselves.
  FrameWriter(net::TlsStream connection, Protection protection);

  // Sends as much of `queue`, from its front, as the socket accepts, and removes frames that have left. False: wait
  // until the socket accepts more. Pass the same queue each time, with new frames added only at the back.
  StatusOr<bool> write(std::deque<OutgoingFrame>& queue);

  int fd() const { return tls_.has_value() ? tls_->fd() : fd_.get(); }

 private:
  StatusOr<bool> write_tls(std::deque<OutgoingFrame>& queue);
  StatusOr<bool> write_plain(std::deque<OutgoingFrame>& queue);
  Status encrypt(std::deque<OutgoingFrame>& queue);
  void seal(OutgoingFrame& frame);
  // parts(): the pieces of a frame in memory; size_of(): their total size in bytes.
  std::array<std::span<const std::byte>, 3> parts(const OutgoingFrame& frame) const;
  size_t size_of(const OutgoingFrame& frame) const;

  std::optional<net::TlsStream> tls_;  // otherwise the next two
  Fd fd_;
  std::optional<net::Mac> mac_;
  Status broken_;
  std::unique_ptr<char[]> record_;  // buffer in which small pieces are joined
};

}  // namespace keepstep::comm::tcp
