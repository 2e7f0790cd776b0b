// The frames that leave over one connection, protected by TLS or by MACs of their own. One thread; nothing here waits.
//
// With TLS a frame is encrypted first, at most kBatchBytes of frames ahead of the socket. With MACs its header and its
// payload each get a tag, and the payload leaves from where it lies. Either way a frame that has begun must go on as it
// was: the other end counts records, or tags.
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

// A frame that is to leave. Its payload is memory of who sends.
class OutgoingFrame {
 public:
  // `request` (may be null) has `frame.bytes` fewer left once these are with the system.
  OutgoingFrame(const Frame& frame, const std::byte* payload, PartRequest* request);

  bool begun() const { return begun_; }
  void copy();                           // the payload: the memory it was in is not touched any more
  void disown() { request_ = nullptr; }  // nobody wants to know any more

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
  size_t gone_ = 0;  // how much of it has been encrypted, or is with the system
};

class FrameWriter {
 public:
  static constexpr size_t kBatchBytes = 128 << 10;  // twice as many are slower: they leave the cache

  // Over a connection whose ends have introduced themselves.
  FrameWriter(net::TlsStream connection, Protection protection);

  // Sends of the frames in `queue`, from its front, what the socket takes; what has left is removed. False:
  // wait until the socket takes more. The queue must be the same each time, with frames added behind.
  StatusOr<bool> write(std::deque<OutgoingFrame>& queue);

  int fd() const { return tls_.has_value() ? tls_->fd() : fd_.get(); }

 private:
  StatusOr<bool> write_tls(std::deque<OutgoingFrame>& queue);
  StatusOr<bool> write_plain(std::deque<OutgoingFrame>& queue);
  Status encrypt(std::deque<OutgoingFrame>& queue);
  void seal(OutgoingFrame& frame);
  // What of a frame lies where, and all of it in bytes.
  std::array<std::span<const std::byte>, 3> parts(const OutgoingFrame& frame) const;
  size_t size_of(const OutgoingFrame& frame) const;

  std::optional<net::TlsStream> tls_;  // or these
  Fd fd_;
  std::optional<net::Mac> mac_;
  Status broken_;
  std::unique_ptr<char[]> record_;  // where small pieces become one
};

}  // namespace keepstep::comm::tcp
