// Both sides of the handshake of one connection, as state machines that never wait. After it both know that the other
// holds the job token and is in this generation, and which rank and stream it is.
//
//   dialer -> acceptor   hello:  identity, from, to, stream, nonce
//   acceptor -> dialer   answer: welcome, nonce, proof        or: not yet, old generation, unknown rank; then closed
//   dialer -> acceptor   proof;  frames follow at once
//
// Connecting proves nothing, the handshake does. One thread each.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/tcp_socket.h"
#include "base/token.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {

// Sends and receives a message of a few bytes, piece by piece.
class SmallMessage {
 public:
  void start(size_t bytes) {
    bytes_.assign(bytes, std::byte{});
    done_ = 0;
  }
  std::byte* data() { return bytes_.data(); }
  enum class Progress { kDone, kWait, kClosed };
  Progress send(int fd);
  Progress receive(int fd);

 private:
  std::vector<std::byte> bytes_;
  size_t done_ = 0;
};

// Connects to `address` and introduces itself.
class Dial {
 public:
  Dial(const SocketAddress& address, const Hello& hello, const JobToken& token, size_t buffer_bytes);

  enum class State { kUnderWay, kDone, kTryAgain, kRefused };
  // Does what can be done now.
  State step();
  // What to poll for (POLLIN or POLLOUT) before the next step. -1: there is no socket; step again when it is time to.
  int fd() const { return fd_.get(); }
  short events() const;
  bool reached() const { return step_ != Step::kConnect; }  // something accepted the connection, whatever it is
  Fd take() { return std::move(fd_); }                      // after kDone
  const std::string& because() const { return why_; }       // after kTryAgain and kRefused

 private:
  enum class Step { kConnect, kHello, kAnswer, kProof };
  State again(std::string why);
  State refused(std::string why);
  State read_answer();

  const SocketAddress address_;
  Hello hello_;
  const JobToken& token_;
  const size_t buffer_bytes_;
  Fd fd_;
  Step step_ = Step::kConnect;
  SmallMessage message_;
  std::string why_;
};

// Why a connection was closed; each is counted.
enum class Refusal { kNone, kNotYet, kOldGeneration, kUnknownRank, kWrongToken, kMalformed, kGone };

// Hears out who connected.
class Reception {
 public:
  // `judge` decides about a hello that is well formed.
  using Judge = std::function<Verdict(const Hello&)>;
  Reception(Fd fd, const JobToken& token, Judge judge, size_t buffer_bytes);

  enum class State { kUnderWay, kDone, kRefused };
  State step();
  int fd() const { return fd_.get(); }
  short events() const;
  Fd take() { return std::move(fd_); }
  const Hello& hello() const { return hello_; }
  Refusal refusal() const { return refusal_; }

 private:
  enum class Step { kHello, kAnswer, kProof };
  State refused(Refusal why);
  State read_hello();

  Fd fd_;
  const JobToken& token_;
  Judge judge_;
  Step step_ = Step::kHello;
  SmallMessage message_;
  Hello hello_;
  Answer answer_;
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace keepstep::comm::tcp
