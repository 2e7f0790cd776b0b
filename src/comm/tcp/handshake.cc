#include "comm/tcp/handshake.h"

#include <poll.h>

#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace keepstep::comm::tcp {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads on until `bytes` is full; whether it is.
StatusOr<bool> fill(net::TlsStream& stream, std::span<std::byte> bytes, size_t& got) {
  while (got < bytes.size()) {
    KEEPSTEP_ASSIGN_OR_RETURN(const size_t count,
                              stream.read({reinterpret_cast<char*>(bytes.data()) + got, bytes.size() - got}));
    if (count == 0) {
      return false;
    }
    got += count;
  }
  return true;
}

const char* option_of(Protection protection) { return protection == Protection::kTls ? "tls" : "plain"; }

}  // namespace

// ---- the side that connects

Dial::Dial(const SocketAddress& address, const Hello& hello, std::shared_ptr<const net::TlsContext> context,
           size_t buffer_bytes)
    : address_(address), hello_(hello), context_(std::move(context)), buffer_bytes_(buffer_bytes) {}

Dial::State Dial::again(std::string why) {
  fd_.reset();
  stream_.reset();
  why_ = std::move(why);
  return State::kTryAgain;
}
Dial::State Dial::refused(std::string why) {
  again(std::move(why));
  return State::kRefused;
}

Dial::State Dial::failed(const Status& why) {
  if (absl::IsFailedPrecondition(why)) {
    return again(absl::StrFormat("rank %d is not in generation %d: it has not begun there, or is over", hello_.to,
                                 hello_.identity.generation));
  }
  reached_ = false;  // also where it refused our key: anybody can make up that alert
  return again(std::string(why.message()));
}

// Whether it is done, as the next.
StatusOr<bool> Dial::connect() {
  pollfd poll_fd{fd_.get(), POLLOUT, 0};
  if (poll(&poll_fd, 1, 0) == 0) {
    events_ = POLLOUT;
    return false;
  }
  if (const int error = socket_error(fd_.get()); error != 0) {
    return absl::UnavailableError(absl::StrFormat("connect to %s: %s", address_.text(), std::strerror(error)));
  }
  tune_tcp(fd_.get(), buffer_bytes_);
  KEEPSTEP_ASSIGN_OR_RETURN(stream_,
                            net::TlsStream::create(context_, net::Role::kConnects, std::move(fd_), address_.text()));
  reached_ = true;
  return true;
}

StatusOr<bool> Dial::prove() {
  KEEPSTEP_ASSIGN_OR_RETURN(events_, stream_->handshake());
  if (events_ != 0) {
    return false;
  }
  encode(hello_, answer_);
  KEEPSTEP_RETURN_IF_ERROR(stream_->write(text_of(answer_)));
  return true;
}

Dial::State Dial::read_answer() {
  const auto answer = parse_answer(answer_);
  if (!answer.has_value()) {
    return refused(absl::StrCat("what listens at ", address_.text(), " does not speak keepstep's data protocol"));
  }
  if (answer->verdict == Verdict::kOtherProtection) {
    return refused(absl::StrFormat("rank %d protects frames as with --data-plane %s, this one as with --data-plane %s",
                                   hello_.to, option_of(answer->hello.protection), option_of(hello_.protection)));
  }
  if (answer->verdict != Verdict::kWelcome || answer->hello != hello_) {
    return refused(absl::StrFormat("what listens at %s is not rank %d, or does not know rank %d, in generation %d",
                                   address_.text(), hello_.to, hello_.from, hello_.identity.generation));
  }
  return State::kDone;
}

Dial::State Dial::step() {
  if (!fd_.valid() && !stream_.has_value()) {
    StatusOr<Fd> fd = start_connect(address_);
    if (!fd.ok()) {
      return again(std::string(fd.status().message()));
    }
    fd_ = *std::move(fd);
    events_ = POLLOUT;
    return State::kUnderWay;
  }
  while (true) {
    StatusOr<bool> done = false;
    switch (step_) {
      case Step::kConnect:
        done = connect();
        break;
      case Step::kProve:
        done = prove();
        break;
      case Step::kHello: {
        const StatusOr<net::TlsStream::Wait> wait = stream_->flush();
        events_ = wait.value_or(0);
        done = wait.ok() ? StatusOr<bool>(*wait == 0) : wait.status();
        break;
      }
      case Step::kAnswer:
        events_ = POLLIN;
        done = fill(*stream_, answer_, got_);
        if (done.value_or(false)) {
          return read_answer();
        }
        break;
    }
    if (!done.ok()) {
      return failed(done.status());
    }
    if (!*done) {
      return State::kUnderWay;
    }
    step_ = static_cast<Step>(static_cast<int>(step_) + 1);
  }
}

// ---- the side that accepts

Reception::Reception(net::TlsStream stream, Protection protection, Judge judge)
    : stream_(std::move(stream)), protection_(protection), judge_(std::move(judge)), events_(POLLIN) {}

Reception::State Reception::step() {
  if (!verdict_.has_value()) {
    const StatusOr<bool> done = fill(stream_, bytes_, got_);
    if (!done.ok()) {
      return State::kGone;
    }
    if (!*done) {
      return State::kUnderWay;
    }
    const std::optional<Hello> hello = parse_hello(bytes_);
    if (!hello.has_value()) {
      return State::kMalformed;
    }
    hello_ = *hello;
    verdict_ = judge_(hello_);
    Answer answer{*verdict_, hello_};
    answer.hello.protection = protection_;
    encode(answer, bytes_);
    if (!stream_.write(text_of(bytes_)).ok()) {
      return State::kGone;
    }
  }
  const StatusOr<net::TlsStream::Wait> wait = stream_.flush();
  if (!wait.ok()) {
    return State::kGone;
  }
  events_ = *wait;
  if (*wait != 0) {
    return State::kUnderWay;
  }
  return *verdict_ == Verdict::kWelcome ? State::kDone : State::kRefused;
}

}  // namespace keepstep::comm::tcp
