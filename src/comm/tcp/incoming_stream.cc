#include "comm/tcp/incoming_stream.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/progress.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int kMostFramesAtOnce = 32;  // then the other links have their turn
constexpr size_t kDroppedAtOnce = 16 << 10;

}  // namespace

// What is left of the payload under way, and the next header with it.
std::optional<IncomingStream::State> IncomingStream::read() {
  std::byte dropped[kDroppedAtOnce];
  const size_t payload = destination_ != nullptr ? left_ : std::min(left_, sizeof dropped);
  iovec parts[2];
  int count = 0;
  if (payload > 0) {
    parts[count++] = {destination_ != nullptr ? destination_ : dropped, payload};
  }
  if (payload == left_) {
    parts[count++] = {header_.data() + got_, kFrameHeaderBytes - got_};
  }
  const ssize_t n = readv(fd_.get(), parts, count);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return State::kWait;
  }
  if (n <= 0) {
    why_ = n == 0 ? "it closed the connection" : std::string("the connection: ") + std::strerror(errno);
    return State::kLost;
  }
  const size_t placed = std::min(static_cast<size_t>(n), payload);
  left_ -= placed;
  if (destination_ != nullptr) {
    destination_ += placed;
  }
  got_ += static_cast<size_t>(n) - placed;
  return std::nullopt;
}

bool IncomingStream::begin(PairMirror& mirror) {
  frame_ = parse_frame(header_, 0);
  got_ = 0;
  if (!frame_.has_value()) {
    return false;
  }
  left_ = frame_->bytes;
  destination_ = nullptr;
  ends_message_ = false;
  if (frame_->kind == FrameKind::kBytes) {
    const std::optional<PairMirror::Place> place = mirror.place(*frame_);
    if (!place.has_value()) {
      return false;
    }
    destination_ = place->to;
    ends_message_ = place->ends_message;
  }
  return true;
}

IncomingStream::State IncomingStream::advance(PairMirror& mirror, std::atomic<uint64_t>& moved) {
  bool changed = false;
  int frames = 0;
  while (frames < (mirror.incoming_bytes().cancelled() ? 1 : kMostFramesAtOnce)) {
    if (const std::optional<State> nothing = read(); nothing.has_value()) {
      return *nothing == State::kWait && changed ? State::kChanged : *nothing;
    }
    while (frame_.has_value() ? left_ == 0 : got_ == kFrameHeaderBytes) {
      if (!frame_.has_value()) {
        if (!begin(mirror)) {
          return malformed();
        }
        continue;
      }
      if (!mirror.apply(*frame_)) {
        return malformed();
      }
      if (destination_ != nullptr) {
        note_moved(moved);
      }
      changed = changed || frame_->kind != FrameKind::kBytes || ends_message_;
      frame_.reset();
      ++frames;
    }
  }
  return changed ? State::kChanged : State::kWait;
}

IncomingStream::State IncomingStream::malformed() {
  why_ = "it sent a malformed frame";
  return State::kMalformed;
}

}  // namespace keepstep::comm::tcp
