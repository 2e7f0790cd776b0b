#include "comm/tcp/part_streams.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace

// ---- out

void SendStream::push(const Frame& frame, const std::byte* payload, PartRequest* request) {
  Outgoing& next = queue_.emplace_back();
  encode(frame, std::span<std::byte, kFrameHeaderBytes>(next.header));
  next.payload = payload;
  next.bytes = frame.bytes;
  next.request = request;
}

short SendStream::events() const {
  if (!lost_.empty() || queue_.empty()) {
    return 0;
  }
  if (dial_ != nullptr) {
    return dial_->fd() >= 0 ? dial_->events() : 0;
  }
  return fd_.valid() ? POLLOUT : 0;
}

int64_t SendStream::next_try_ns() const {
  return lost_.empty() && !queue_.empty() && !fd_.valid() && (dial_ == nullptr || dial_->fd() < 0) ? retry_at_ns_
                                                                                                   : kNoDeadline;
}

bool SendStream::connect(int64_t now_ns) {
  if (dial_ == nullptr) {
    if (now_ns < retry_at_ns_) {
      return false;
    }
    dial_ = std::make_unique<Dial>(address_, hello_, config_.token, config_.socket_buffer_bytes);
  }
  const Dial::State state = dial_->step();
  // Who accepts and does not answer yet may not have begun the generation; who does not accept at all is not there, or
  // something between us lets nothing through.
  if (dial_->reached()) {
    unreached_since_ns_ = 0;
  } else if (unreached_since_ns_ == 0) {
    unreached_since_ns_ = now_ns;
  } else if (now_ns - unreached_since_ns_ >= config_.connect_ns) {
    lost_ = absl::StrFormat("nothing at %s accepted a connection for %g s%s%s", address_.text(),
                            static_cast<double>(config_.connect_ns) * 1e-9, dial_->because().empty() ? "" : ": ",
                            dial_->because());
    dial_.reset();
    return true;
  }
  switch (state) {
    case Dial::State::kUnderWay:
      return false;
    case Dial::State::kDone:
      fd_ = dial_->take();
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
  lost_ = absl::StrFormat("nothing that was sent to %s has been acknowledged for %.1f s", address_.text(),
                          static_cast<double>(silent_ns) * 1e-9);
  dial_.reset();
  fd_.reset();
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
  if (!fd_.valid()) {
    any = connect(now_ns);
    if (!fd_.valid()) {
      return any;
    }
  }
  while (lost_.empty() && !queue_.empty() && write()) {
    any = true;
  }
  return any;
}

bool SendStream::write() {
  delay_if_injected();
  // Several small frames leave in one call.
  constexpr size_t kMostParts = 16;
  iovec parts[kMostParts];
  size_t count = 0;
  size_t skip = sent_;
  for (const Outgoing& out : queue_) {
    if (count + 2 > kMostParts) {
      break;
    }
    const auto add = [&](const std::byte* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes > skipped) {
        parts[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
      }
    };
    add(out.header.data(), out.header.size());
    add(out.payload, out.bytes);
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return errno == EINTR;
    }
    lost_ = absl::StrCat("sending to ", address_.text(), ": ", std::strerror(errno));
    fd_.reset();
    return true;
  }
  sent_ += static_cast<size_t>(n);
  while (!queue_.empty() && sent_ >= kFrameHeaderBytes + queue_.front().bytes) {
    sent_ -= kFrameHeaderBytes + queue_.front().bytes;
    if (PartRequest* request = queue_.front().request; request != nullptr) {
      request->left -= queue_.front().bytes;
      request->done = request->left == 0;
    }
    queue_.pop_front();
  }
  return true;
}

void SendStream::cancel() {
  if (queue_.empty()) {
    return;
  }
  if (sent_ == 0) {
    queue_.clear();
    return;
  }
  queue_.erase(queue_.begin() + 1, queue_.end());
  copy_queued();
  queue_.front().request = nullptr;
}

void SendStream::copy_queued() {
  for (Outgoing& out : queue_) {
    if (out.own == nullptr && out.bytes > 0) {
      out.own = std::make_unique_for_overwrite<std::byte[]>(out.bytes);
      std::memcpy(out.own.get(), out.payload, out.bytes);
      out.payload = out.own.get();
    }
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
  fd_.reset();
  return true;
}

// Reads what is there: first into the payload under way, then into the staging area.
ReceiveStream::Read ReceiveStream::fill() {
  std::byte scratch[16 << 10];
  iovec parts[2];
  int count = 0;
  size_t direct = 0;
  if (placed_ && left_ > 0) {  // the staging area is empty then
    direct = destination_ != nullptr ? left_ : std::min(left_, sizeof scratch);
    parts[count++] = {destination_ != nullptr ? destination_ : scratch, direct};
  }
  if (staged_begin_ > 0) {
    std::memmove(staging_.get(), staging_.get() + staged_begin_, staged());
    staged_end_ -= staged_begin_;
    staged_begin_ = 0;
  }
  if (direct == left_ || !placed_) {
    parts[count++] = {staging_.get() + staged_end_, kStagingBytes - staged_end_};
  }
  const ssize_t n = readv(fd_.get(), parts, count);
  if (n > 0) {
    const size_t placed = std::min<size_t>(n, direct);
    left_ -= placed;
    if (destination_ != nullptr) {
      destination_ += placed;
    }
    staged_end_ += static_cast<size_t>(n) - placed;
    return Read::kSome;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Read::kNothing;
  }
  lose(n == 0 ? "it closed the connection" : std::string("the connection: ") + std::strerror(errno));
  return Read::kNothing;
}

bool ReceiveStream::take_header(Inbox& inbox, std::optional<GivenUp>& told) {
  if (!frame_.has_value()) {
    if (staged() < kFrameHeaderBytes) {
      return false;
    }
    frame_ = parse_frame(
        std::span<const std::byte, kFrameHeaderBytes>(staging_.get() + staged_begin_, kFrameHeaderBytes), 1);
    if (!frame_.has_value()) {
      return lose("it sent a malformed frame", true);
    }
    staged_begin_ += kFrameHeaderBytes;
    placed_ = false;
  }
  if (frame_->context != inbox.context) {
    return lose("it sent a frame of another group", true);
  }
  if (frame_->kind == FrameKind::kGiveUp) {
    const bool link = frame_->operation != 0;
    if (!told.has_value()) {
      told = GivenUp{frame_->part, link, link ? static_cast<Rank>(frame_->operation - 1) : 0};
    }
    frame_.reset();
    return true;
  }
  return begin_part(inbox);
}

bool ReceiveStream::begin_part(Inbox& inbox) {
  left_ = frame_->bytes;
  request_ = nullptr;
  destination_ = nullptr;
  if (inbox.given_up) {
    placed_ = true;
    return true;
  }
  Posted* posted = inbox.find(frame_->key());
  stuck_ = posted == nullptr;
  if (stuck_) {
    return false;
  }
  PartRequest& request = *posted->request;
  if (!request.begun) {
    request.begun = true;
    request.bytes = request.left = frame_->total;
  }
  if (frame_->total != request.bytes || frame_->bytes > request.left || frame_->total > posted->buffer.size()) {
    return lose(absl::StrCat("it sent ", frame_->total, " bytes where ", posted->buffer.size(), " were expected"),
                true);
  }
  request_ = &request;
  destination_ = posted->buffer.data() + frame_->offset;
  placed_ = true;
  return true;
}

void ReceiveStream::take(size_t bytes) {
  if (bytes > 0 && destination_ != nullptr) {
    std::memcpy(destination_, staging_.get() + staged_begin_, bytes);
    destination_ += bytes;
  }
  staged_begin_ += bytes;
  left_ -= bytes;
}

void ReceiveStream::finish_frame(Inbox& inbox) {
  if (request_ != nullptr) {
    inbox.bytes_taken += frame_->bytes;
    request_->left -= frame_->bytes;
    if (request_->left == 0) {
      request_->done = true;
      std::erase_if(inbox.posted, [&](const Posted& entry) { return entry.request == request_; });
    }
  }
  frame_.reset();
  placed_ = false;
  request_ = nullptr;
  destination_ = nullptr;
}

bool ReceiveStream::advance(Inbox& inbox, std::optional<GivenUp>& told) {
  if (!lost_.empty()) {
    return false;
  }
  bool any = false;
  while (lost_.empty()) {
    if (placed_) {
      take(std::min(left_, staged()));
      if (left_ == 0) {
        finish_frame(inbox);
        any = true;
        continue;
      }
    } else if (take_header(inbox, told)) {
      any = true;
      continue;
    } else if (stuck_) {
      break;
    }
    if (lost_.empty() && fill() == Read::kNothing) {
      break;
    }
    any = true;
  }
  return any || !lost_.empty();
}

void ReceiveStream::cancel() {
  request_ = nullptr;
  destination_ = nullptr;
  stuck_ = false;
}

}  // namespace keepstep::comm::tcp
