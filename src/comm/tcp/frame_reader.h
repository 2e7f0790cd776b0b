// Reads the frames of one connection. Every byte is authenticated before use: by TLS, or by the frames' MACs.
//
// The payload goes straight to the memory passed to place(). With MACs that happens before it is checked, so it must
// not be used until the frame is whole. One thread at a time; nothing here waits.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wire.h"
#include "net/mac.h"
#include "net/tls_stream.h"

namespace keepstep::comm::tcp {

class FrameReader {
 public:
  // Over a connection whose ends have introduced themselves as those of `stream`.
  FrameReader(net::TlsStream connection, Protection protection, uint32_t stream);
  // For the fuzzer only: checks nothing.
  static FrameReader unprotected(Fd fd, uint32_t stream);

  enum class Came {
    kNothing,    // nothing yet
    kHeader,     // frame() begins: place() its payload, even if it is empty, or call again later
    kFrame,      // frame() is whole; the next call begins another
    kLost,       // the connection broke
    kMalformed,  // the data are not a frame, or not what the peer sent
  };
  // Reads on until one of these events.
  Came advance();
  const Frame& frame() const { return *frame_; }
  // The payload goes to `to`, which must have room for it; null: it is dropped.
  void place(std::byte* to);
  // Drops the rest of a placed payload: its memory is not touched again. Must not be called while advance() runs.
  void drop() { to_ = nullptr; }

  // Closes the connection, so the peer notices.
  void close();
  int fd() const { return tls_.has_value() ? tls_->fd() : fd_.get(); }
  const std::string& why() const { return why_; }  // after kLost and kMalformed

 private:
  explicit FrameReader(uint32_t stream) : stream_(stream) {}
  Came ended(Came how, std::string why);
  Came lost(std::string why);
  Came malformed(std::string why);
  Came changed_on_the_way();
  std::optional<Came> read();  // std::nullopt: some bytes arrived
  std::optional<Came> read_tls();
  std::optional<Came> read_plain();
  std::optional<Came> begin();
  std::optional<Came> end();
  void take_staged();
  void took(std::span<const std::byte> payload);
  std::span<const std::byte> staged() const { return std::span(staging_).subspan(begin_, end_ - begin_); }

  const uint32_t stream_;
  std::optional<net::TlsStream> tls_;  // otherwise the next two
  Fd fd_;
  std::optional<net::Mac> mac_;

  // Received bytes that are not placed yet: a header, and without TLS whatever followed it in the same read.
  std::array<std::byte, 8192> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;

  std::optional<Frame> frame_;  // being read
  bool placed_ = false;
  bool whole_ = false;
  std::byte* to_ = nullptr;  // null: dropped
  size_t left_ = 0;          // of its payload
  std::string why_;
};

}  // namespace keepstep::comm::tcp
