#include "comm/tcp/handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace keepstep::comm::tcp {
namespace {

constexpr char kDialer[] = "data dialer";
constexpr char kAcceptor[] = "data acceptor";

template <size_t kSize>
std::string_view view(const std::array<char, kSize>& array) {
  return {array.data(), array.size()};
}
template <size_t kSize>
void fill(std::array<char, kSize>& array, const std::string& bytes) {
  std::copy_n(bytes.begin(), std::min(bytes.size(), kSize), array.begin());
}
template <size_t kBytes>
std::span<std::byte, kBytes> room(SmallMessage& message) {
  return std::span<std::byte, kBytes>(message.data(), kBytes);
}

}  // namespace

SmallMessage::Progress SmallMessage::send(int fd) {
  while (done_ < bytes_.size()) {
    const ssize_t n = ::send(fd, bytes_.data() + done_, bytes_.size() - done_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      return Progress::kWait;
    } else if (errno != EINTR) {
      return Progress::kClosed;
    }
  }
  return Progress::kDone;
}

SmallMessage::Progress SmallMessage::receive(int fd) {
  while (done_ < bytes_.size()) {
    const ssize_t n = ::recv(fd, bytes_.data() + done_, bytes_.size() - done_, MSG_DONTWAIT);
    if (n > 0) {
      done_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      return Progress::kWait;
    } else if (n == 0 || errno != EINTR) {
      return Progress::kClosed;
    }
  }
  return Progress::kDone;
}

// ---- the side that connects

Dial::Dial(const SocketAddress& address, const Hello& hello, const JobToken& token, size_t buffer_bytes)
    : address_(address), hello_(hello), token_(token), buffer_bytes_(buffer_bytes) {
  fill(hello_.nonce, random_nonce());
}

short Dial::events() const { return step_ == Step::kAnswer ? POLLIN : POLLOUT; }

Dial::State Dial::again(std::string why) {
  fd_.reset();
  why_ = std::move(why);
  return State::kTryAgain;
}
Dial::State Dial::refused(std::string why) {
  fd_.reset();
  why_ = std::move(why);
  return State::kRefused;
}

Dial::State Dial::read_answer() {
  const auto answer = parse_answer(room<kAnswerBytes>(message_));
  if (!answer.has_value()) {
    return refused(absl::StrCat("what listens at ", address_.text(), " does not speak keepstep's data protocol"));
  }
  switch (answer->verdict) {
    case Verdict::kWelcome:
      break;
    case Verdict::kNotYet:
      return again(absl::StrFormat("rank %d has not begun generation %d yet", hello_.to, hello_.identity.generation));
    case Verdict::kOldGeneration:
      return refused(absl::StrFormat("for rank %d generation %d is over", hello_.to, hello_.identity.generation));
    case Verdict::kUnknownRank:
      return refused(absl::StrFormat("what listens at %s is not rank %d, or does not know rank %d, in generation %d",
                                     address_.text(), hello_.to, hello_.from, hello_.identity.generation));
  }
  if (!token_.verify(view(answer->proof), kAcceptor, view(answer->nonce), view(hello_.nonce), hello_.claim())) {
    return refused(absl::StrCat("what listens at ", address_.text(), " does not know the job token"));
  }
  Proof proof;
  fill(proof.proof, token_.prove(kDialer, view(hello_.nonce), view(answer->nonce), hello_.claim()));
  message_.start(kProofBytes);
  encode(proof, room<kProofBytes>(message_));
  step_ = Step::kProof;
  return State::kUnderWay;
}

Dial::State Dial::step() {
  using Progress = SmallMessage::Progress;
  if (!fd_.valid()) {
    StatusOr<Fd> fd = start_connect(address_);
    if (!fd.ok()) {
      return again(std::string(fd.status().message()));
    }
    fd_ = *std::move(fd);
    return State::kUnderWay;
  }
  while (true) {
    switch (step_) {
      case Step::kConnect: {
        pollfd poll_fd{fd_.get(), POLLOUT, 0};
        if (poll(&poll_fd, 1, 0) == 0) {
          return State::kUnderWay;
        }
        if (const int error = socket_error(fd_.get()); error != 0) {
          return again(absl::StrFormat("connect to %s: %s", address_.text(), std::strerror(error)));
        }
        tune_tcp(fd_.get(), buffer_bytes_);
        message_.start(kHelloBytes);
        encode(hello_, room<kHelloBytes>(message_));
        step_ = Step::kHello;
        break;
      }
      case Step::kHello:
        switch (message_.send(fd_.get())) {
          case Progress::kWait:
            return State::kUnderWay;
          case Progress::kClosed:
            return again(absl::StrCat(address_.text(), " closed the connection"));
          case Progress::kDone:
            message_.start(kAnswerBytes);
            step_ = Step::kAnswer;
        }
        break;
      case Step::kAnswer:
        switch (message_.receive(fd_.get())) {
          case Progress::kWait:
            return State::kUnderWay;
          case Progress::kClosed:
            return again(absl::StrCat(address_.text(), " closed the connection before it answered"));
          case Progress::kDone:
            if (const State state = read_answer(); state != State::kUnderWay) {
              return state;
            }
        }
        break;
      case Step::kProof:
        switch (message_.send(fd_.get())) {
          case Progress::kWait:
            return State::kUnderWay;
          case Progress::kClosed:
            return again(absl::StrCat(address_.text(), " closed the connection"));
          case Progress::kDone:
            return State::kDone;
        }
    }
  }
}

// ---- the side that accepts

Reception::Reception(Fd fd, const JobToken& token, Judge judge, size_t buffer_bytes)
    : fd_(std::move(fd)), token_(token), judge_(std::move(judge)) {
  tune_tcp(fd_.get(), buffer_bytes);
  message_.start(kHelloBytes);
}

short Reception::events() const { return step_ == Step::kAnswer ? POLLOUT : POLLIN; }

Reception::State Reception::refused(Refusal why) {
  refusal_ = why;
  fd_.reset();
  return State::kRefused;
}

Reception::State Reception::read_hello() {
  const auto hello = parse_hello(room<kHelloBytes>(message_));
  if (!hello.has_value()) {
    return refused(Refusal::kMalformed);
  }
  hello_ = *hello;
  answer_.verdict = judge_(hello_);
  if (answer_.verdict == Verdict::kWelcome) {
    fill(answer_.nonce, random_nonce());
    fill(answer_.proof, token_.prove(kAcceptor, view(answer_.nonce), view(hello_.nonce), hello_.claim()));
  }
  message_.start(kAnswerBytes);
  encode(answer_, room<kAnswerBytes>(message_));
  step_ = Step::kAnswer;
  return State::kUnderWay;
}

Reception::State Reception::step() {
  using Progress = SmallMessage::Progress;
  while (true) {
    const Progress progress = step_ == Step::kAnswer ? message_.send(fd_.get()) : message_.receive(fd_.get());
    if (progress == Progress::kWait) {
      return State::kUnderWay;
    }
    if (progress == Progress::kClosed) {
      return refused(step_ == Step::kProof ? Refusal::kWrongToken : Refusal::kGone);
    }
    switch (step_) {
      case Step::kHello:
        if (const State state = read_hello(); state != State::kUnderWay) {
          return state;
        }
        break;
      case Step::kAnswer:
        switch (answer_.verdict) {
          case Verdict::kWelcome:
            message_.start(kProofBytes);
            step_ = Step::kProof;
            break;
          case Verdict::kNotYet:
            return refused(Refusal::kNotYet);
          case Verdict::kOldGeneration:
            return refused(Refusal::kOldGeneration);
          case Verdict::kUnknownRank:
            return refused(Refusal::kUnknownRank);
        }
        break;
      case Step::kProof: {
        const auto proof = parse_proof(room<kProofBytes>(message_));
        if (!proof.has_value()) {
          return refused(Refusal::kMalformed);
        }
        if (!token_.verify(view(proof->proof), kDialer, view(hello_.nonce), view(answer_.nonce), hello_.claim())) {
          return refused(Refusal::kWrongToken);
        }
        return State::kDone;
      }
    }
  }
}

}  // namespace keepstep::comm::tcp
