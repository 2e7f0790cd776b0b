#include "comm/tcp/part_streams.h"

#include <poll.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "comm/sync.h"
#include "comm/tcp/link_fault.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int64_t kShortestPauseNs = 1'000'000;
constexpr int64_t kLongestPauseNs = 100'000'000;
constexpr int64_t kLookForSilenceNs = 1'000'000'000;
constexpr int64_t kAwayNs = 1'000'000'000;  // longer than a process that waits for a connection sleeps
constexpr int64_t kHeldNs = 1'000'000'000;  // a connection that was open for this long was not broken off at once

}  // namespace

// ---- out

void SendStream::push(const Frame& frame, const std::byte* payload, PartRequest* request) {
  queue_.emplace_back(frame, payload, request);
}

short SendStream::events() const {
  if (!lost_.empty() || queue_.empty()) {
    return 0;
  }
  if (dial_ != nullptr) {
    return dial_->fd() >= 0 ? dial_->events() : 0;
  }
  return out_ != nullptr ? POLLOUT : 0;
}

int64_t SendStream::next_try_ns() const {
  return lost_.empty() && !queue_.empty() && out_ == nullptr && (dial_ == nullptr || dial_->fd() < 0) ? retry_at_ns_
                                                                                                      : kNoDeadline;
}

bool SendStream::connect(int64_t now_ns) {
  if (dial_ == nullptr) {
    if (now_ns < retry_at_ns_) {
      return false;
    }
    dial_ = std::make_unique<Dial>(address_, hello_, tls_, config_.socket_buffer_bytes);
  }
  if (now_ns - looked_at_ns_ > kAwayNs) {
    unreached_since_ns_ = 0;  // nobody drove this connection meanwhile: that it did not come about tells nothing
  }
  looked_at_ns_ = now_ns;
  const bool held = dial_->reached();
  const Dial::State state = dial_->step();
  // A peer that accepts and does not answer yet may not have begun the generation. What accepts nothing, or accepts and
  // breaks off at once, is not the peer: a proxy, another service, a firewall.
  if (!held && dial_->reached()) {
    reached_at_ns_ = now_ns;
  }
  const bool answered = state == Dial::State::kDone || (state == Dial::State::kTryAgain && dial_->reached());
  silenced_ = silenced_ && !answered;
  if (answered || (!silenced_ && held && now_ns - reached_at_ns_ >= kHeldNs)) {
    unreached_since_ns_ = 0;
  } else if (unreached_since_ns_ == 0) {
    unreached_since_ns_ = now_ns;
  } else if ((silenced_ || !dial_->reached()) && now_ns - unreached_since_ns_ >= config_.connect_ns) {
    lost_ = absl::StrFormat("no connection to %s came about for %g s%s%s", address_.text(),
                            static_cast<double>(config_.connect_ns) * 1e-9, dial_->because().empty() ? "" : ": ",
                            dial_->because());
    dial_.reset();
    return true;
  }
  switch (state) {
    case Dial::State::kUnderWay:
      return false;
    case Dial::State::kDone:
      out_ = std::make_unique<FrameWriter>(dial_->take(), config_.protection);
      dial_.reset();
      return true;
    case Dial::State::kTryAgain:
      pause_ns_ = std::clamp(pause_ns_ * 2, kShortestPauseNs, kLongestPauseNs);
      retry_at_ns_ = now_ns + pause_ns_;
      dial_.reset();
      return false;
    case Dial::State::kRefused:
      lost_ = dial_->because();
      dial_.reset();
      return true;
  }
  return false;
}

// A link that lets nothing through and tells nobody: the kernel repeats what we sent for a quarter of an hour.
bool SendStream::fell_silent(int64_t now_ns) {
  if (now_ns - silence_looked_for_ns_ < kLookForSilenceNs) {
    return false;
  }
  silence_looked_for_ns_ = now_ns;
  if (fd() < 0) {
    return false;
  }
  const int64_t unacknowledged_ns = unacknowledged_ms(fd()) * 1'000'000;
  if (unacknowledged_ns == 0) {
    silent_since_ns_ = 0;
    return false;
  }
  if (silent_since_ns_ == 0) {
    silent_since_ns_ = now_ns;  // the last acknowledgement may be older than what waits for one
  }
  const int64_t silent_ns = std::min(unacknowledged_ns, now_ns - silent_since_ns_);
  if (silent_ns < config_.silent_ns) {
    return false;
  }
  if (out_ == nullptr) {
    // A peer whose queue of connections is full drops them like this: dial again, until connect_ns of silence.
    dial_.reset();
    silent_since_ns_ = 0;
    silenced_ = true;
    unreached_since_ns_ = unreached_since_ns_ != 0 ? unreached_since_ns_ : now_ns - silent_ns;
    return false;
  }
  lose(absl::StrFormat("nothing that was sent to %s has been acknowledged for %.1f s", address_.text(),
                       static_cast<double>(silent_ns) * 1e-9));
  return true;
}

bool SendStream::advance(int64_t now_ns) {
  if (!lost_.empty()) {
    return false;
  }
  if (fell_silent(now_ns)) {
    return true;
  }
  if (queue_.empty()) {
    return false;
  }
  bool any = false;
  if (out_ == nullptr) {
    any = connect(now_ns);
    if (out_ == nullptr) {
      return any;
    }
  }
  while (lost_.empty() && !queue_.empty() && write()) {
    any = true;
  }
  return any;
}

void SendStream::lose(std::string why) {
  lost_ = std::move(why);
  dial_.reset();
  out_.reset();
}

bool SendStream::write() {
  delay_if_injected();
  const StatusOr<bool> wrote = out_->write(queue_);
  if (!wrote.ok()) {
    lose(absl::StrCat("sending to ", address_.text(), ": ", wrote.status().message()));
    return true;
  }
  return *wrote;
}

void SendStream::cancel() {
  std::erase_if(queue_, [](const OutgoingFrame& frame) { return !frame.begun(); });
  copy_queued();
  for (OutgoingFrame& frame : queue_) {
    frame.disown();
  }
}

void SendStream::copy_queued() {
  for (OutgoingFrame& frame : queue_) {
    frame.copy();
  }
}

// ---- in

Posted* Inbox::find(const PartKey& key) {
  const auto it =
      std::find_if(posted.begin(), posted.end(), [&](const Posted& entry) { return entry.request->key == key; });
  return it == posted.end() ? nullptr : &*it;
}

bool ReceiveStream::lose(std::string why, bool malformed) {
  lost_ = std::move(why);
  malformed_ = malformed;
  reader_.close();
  return true;
}

// True: the payload has a place, or the link is lost.
bool ReceiveStream::begin(Inbox& inbox, std::optional<GivenUp>& told) {
  const Frame& frame = reader_.frame();
  if (frame.context != inbox.context) {
    return lose("it sent a frame of another group", true);
  }
  if (frame.kind == FrameKind::kPart) {
    return begin_part(inbox);
  }
  const bool link = frame.operation != 0;
  if (!told.has_value()) {
    told = GivenUp{frame.part, link, link ? static_cast<Rank>(frame.operation - 1) : 0};
  }
  reader_.place(nullptr);
  return true;
}

bool ReceiveStream::begin_part(Inbox& inbox) {
  const Frame& frame = reader_.frame();
  if (inbox.given_up) {
    reader_.place(nullptr);
    return true;
  }
  Posted* posted = inbox.find(frame.key());
  stuck_ = posted == nullptr;
  if (stuck_) {
    return false;
  }
  PartRequest& request = *posted->request;
  if (!request.begun) {
    request.begun = true;
    request.bytes = request.left = frame.total;
  }
  if (frame.total != request.bytes || frame.bytes > request.bytes - request.placed ||
      frame.total > posted->buffer.size()) {
    return lose(absl::StrCat("it sent ", frame.total, " bytes where ", posted->buffer.size(), " were expected"), true);
  }
  request_ = &request;
  request.placed += frame.bytes;
  reader_.place(posted->buffer.data() + frame.offset);
  return true;
}

void ReceiveStream::finish(Inbox& inbox) {
  PartRequest* const request = std::exchange(request_, nullptr);
  if (request == nullptr) {
    return;
  }
  inbox.bytes_taken += reader_.frame().bytes;
  request->left -= reader_.frame().bytes;
  if (request->left == 0) {
    request->done = true;
    std::erase_if(inbox.posted, [&](const Posted& entry) { return entry.request == request; });
  }
}

bool ReceiveStream::advance(Inbox& inbox, std::optional<GivenUp>& told) {
  bool any = false;
  while (lost_.empty()) {
    switch (reader_.advance()) {
      case FrameReader::Came::kNothing:
        return any;
      case FrameReader::Came::kLost:
        return lose(reader_.why());
      case FrameReader::Came::kMalformed:
        return lose(reader_.why(), true);
      case FrameReader::Came::kHeader:
        if (!begin(inbox, told)) {
          return any;
        }
        break;
      case FrameReader::Came::kFrame:
        finish(inbox);
        break;
    }
    any = true;
  }
  return any;
}

void ReceiveStream::cancel() {
  request_ = nullptr;
  reader_.drop();
  stuck_ = false;
}

}  // namespace keepstep::comm::tcp
