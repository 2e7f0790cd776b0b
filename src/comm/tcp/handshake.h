// The start of a connection between two ranks, on both sides, as state machines that never wait.
//
//   TLS with the generation's key (src/net/)
//   dialer -> acceptor   hello:  generation, from, to, stream
//   acceptor -> dialer   answer: the same, and whether the dialer is welcome; if not, the connection ends
//
// The key proves that the other end is in this generation, not which rank it is: each end states both ranks, and both
// check. One thread for each object.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/socket/tcp_socket.h"
#include "comm/tcp/wire.h"
#include "net/tls_stream.h"

namespace keepstep::comm::tcp {

// Connects to `address` and introduces itself.
class Dial {
 public:
  Dial(const SocketAddress& address, const Hello& hello, std::shared_ptr<const net::TlsContext> context,
       size_t buffer_bytes);

  enum class State { kUnderWay, kDone, kTryAgain, kRefused };
  // Does what can be done now.
  State step();
  // What to poll for before the next step; fd -1: there is no socket, so call step() again when it is time.
  int fd() const { return stream_.has_value() ? stream_->fd() : fd_.get(); }
  short events() const { return events_; }
  // Something is there: it accepted the connection and did not break it off, or it is the peer but in another
  // generation.
  bool reached() const { return reached_; }
  net::TlsStream take() { return *std::move(stream_); }  // after kDone
  const std::string& because() const { return why_; }    // after kTryAgain and kRefused

 private:
  enum class Step { kConnect, kProve, kHello, kAnswer };
  State again(std::string why);
  State refused(std::string why);
  State failed(const Status& why);
  StatusOr<bool> connect();
  StatusOr<bool> prove();
  State read_answer();

  const SocketAddress address_;
  const Hello hello_;
  const std::shared_ptr<const net::TlsContext> context_;
  const size_t buffer_bytes_;
  Fd fd_;  // until TLS has it
  std::optional<net::TlsStream> stream_;
  Step step_ = Step::kConnect;
  short events_ = 0;
  bool reached_ = false;
  std::array<std::byte, kHelloBytes> answer_;
  size_t got_ = 0;  // of it
  std::string why_;
};

// Receives the hello of a connection that has proved the key.
class Reception {
 public:
  // `judge` decides on a well-formed hello.
  using Judge = std::function<Verdict(const Hello&)>;
  Reception(net::TlsStream stream, Protection protection, Judge judge);

  enum class State { kUnderWay, kDone, kRefused, kMalformed, kGone };  // kGone: the peer broke off
  State step();
  int fd() const { return stream_.fd(); }
  short events() const { return events_; }
  net::TlsStream take() { return std::move(stream_); }  // after kDone
  const Hello& hello() const { return hello_; }

 private:
  net::TlsStream stream_;
  const Protection protection_;
  const Judge judge_;
  std::array<std::byte, kHelloBytes> bytes_;
  size_t got_ = 0;  // of the hello
  Hello hello_;
  std::optional<Verdict> verdict_;
  short events_;
};

}  // namespace keepstep::comm::tcp
