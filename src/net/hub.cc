#include "net/hub.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/engine_thread.h"

namespace keepstep::net {
namespace {

constexpr size_t kBatchBytes = 4 * TlsStream::kRecordBytes;  // between two system calls
constexpr int kRecordsARound = 64;                           // of one link, before others get their turn
constexpr std::chrono::milliseconds kTick{500};
constexpr int kDeadAfter = 5;  // times a link's ask_after
// A tick counts at most this much: time in which this process was stopped is not its peers' silence.
constexpr std::chrono::milliseconds kMaxTick = 2 * kTick;

}  // namespace

Link::Link(Hub* hub, TlsStream stream, const LinkOptions& options)
    : options_(options),
      peer_(stream.peer()),
      hub_(hub),
      stream_(std::move(stream)),
      reader_(options.max_message_bytes) {}

void Link::send(std::string head, SharedBytes tail) {
  if (head.size() > TlsStream::kRecordBytes && tail == nullptr) {
    tail = std::make_shared<const std::string>(std::exchange(head, {}));
  }
  const std::lock_guard lock(mutex_);
  if (hub_ == nullptr || wish_ != Wish::kGoOn) {
    return;
  }
  Message message{std::move(head), std::move(tail)};
  if (queue_.size() >= options_.max_queued_messages || queued_bytes_ + message.bytes() > options_.max_queued_bytes) {
    overfull_ = true;
  } else {
    queued_bytes_ += message.bytes();
    queue_.push_back(std::move(message));
  }
  hub_->wake(this);
}

void Link::wish(Wish wish) {
  const std::lock_guard lock(mutex_);
  if (hub_ != nullptr && wish > wish_) {
    wish_ = wish;
    hub_->wake(this);
  }
}

void Link::end() { wish(Wish::kEnd); }
void Link::abort() { wish(Wish::kAbort); }

StatusOr<std::unique_ptr<Hub>> Hub::start(const char* name) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (!epoll.valid() || !wake.valid() || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return errno_status("wait for connections (raise the limit on open files with `ulimit -n`?)");
  }
  std::unique_ptr<Hub> hub(new Hub(std::move(epoll), std::move(wake)));
  hub->thread_ = start_engine_thread(name, [hub = hub.get()] { hub->run(); });
  return hub;
}

Hub::~Hub() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  notify();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::shared_ptr<Link> Hub::add(TlsStream stream, const LinkOptions& options) {
  return std::shared_ptr<Link>(new Link(this, std::move(stream), options));
}

void Hub::start(const std::shared_ptr<Link>& link, Receiver* receiver) {
  {
    const std::lock_guard lock(mutex_);
    started_.push_back({link, receiver});
  }
  notify();
}

void Hub::notify() {
  if (std::this_thread::get_id() != thread_.get_id()) {
    (void)eventfd_write(wake_.get(), 1);
  }
}

void Hub::wake(Link* link) {
  if (std::exchange(link->woken_, true)) {
    return;
  }
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = woken_.empty();
    woken_.push_back(link->shared_from_this());
  }
  if (first) {
    notify();
  }
}

void Hub::run() {
  std::array<epoll_event, 64> events{};
  while (true) {
    const bool called = take_calls();  // receivers may have made more calls, which do not wake epoll
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        break;
      }
    }
    closed_.clear();
    const std::vector<std::shared_ptr<Link>> unread = std::exchange(unread_, {});
    const int wait_ms = called || !unread.empty() ? 0 : links_.empty() ? -1 : static_cast<int>(kTick.count());
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
    for (int i = 0; i < count; ++i) {
      if (auto* link = static_cast<Link*>(events[static_cast<size_t>(i)].data.ptr); link != nullptr) {
        serve(*link, events[static_cast<size_t>(i)].events);
      } else {
        eventfd_t ignored = 0;
        (void)eventfd_read(wake_.get(), &ignored);
      }
    }
    for (const std::shared_ptr<Link>& link : unread) {
      serve(*link, EPOLLIN);
    }
    if (const auto passed = since_tick(); passed >= kTick) {
      tick(passed);
      ticked_ = Clock::now();
    }
  }
  take_calls();  // links started meanwhile are closed, too
  while (!links_.empty()) {
    close(*links_.begin()->first, absl::CancelledError("this side closed its connections"));
  }
}

std::chrono::milliseconds Hub::since_tick() const {
  return std::min(kMaxTick, std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - ticked_));
}

// Does what other threads and receivers asked for. Returns whether there was anything.
bool Hub::take_calls() {
  std::vector<Started> started;
  std::vector<std::shared_ptr<Link>> woken;
  {
    const std::lock_guard lock(mutex_);
    started.swap(started_);
    woken.swap(woken_);
  }
  for (const auto& [link, receiver] : started) {
    link->receiver_ = receiver;
    link->silent_ = link->quiet_ = -since_tick();  // the next tick will add that time
    links_.emplace(link.get(), link);
    epoll_event event{.events = EPOLLIN, .data = {.ptr = link.get()}};
    link->events_ = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link->stream_->fd(), &event) != 0) {
      close(*link, errno_status("wait for " + link->peer()));
      continue;
    }
    // OpenSSL may have read ahead during the handshake. And messages sent before start() are still queued.
    serve(*link, EPOLLIN | EPOLLOUT);
  }
  for (const std::shared_ptr<Link>& link : woken) {
    {
      const std::lock_guard lock(link->mutex_);
      link->woken_ = false;
    }
    if (links_.contains(link.get())) {
      write(*link);
    }
  }
  return !started.empty() || !woken.empty();
}

void Hub::serve(Link& link, uint32_t events) {
  if (link.stream_.has_value() && (events & ~uint32_t{EPOLLOUT}) != 0) {
    read(link);
  }
  if (link.stream_.has_value() && (events & EPOLLOUT) != 0) {
    write(link);
  }
}

void Hub::read(Link& link) {
  const StatusOr<bool> all = read_some(link, kRecordsARound);
  if (all.ok()) {
    if (!*all) {
      unread_.push_back(links_.at(&link));  // epoll does not see what OpenSSL has already read
    }
    return;
  }
  if (absl::IsOutOfRange(all.status()) && !link.ended_) {
    // The peer has ended its side. End ours too, but without waiting for the socket.
    if (write_some(link).ok() && link.stream_->end_writes().ok()) {
      (void)link.stream_->flush();
    }
  }
  close(link, all.status());
}

// True: everything that arrived has been read. False: `max_records` were read, and there may be more.
StatusOr<bool> Hub::read_some(Link& link, int max_records) {
  for (int records = 0; records < max_records; ++records) {
    KEEPSTEP_ASSIGN_OR_RETURN(const size_t got, link.stream_->read(link.reader_.missing()));
    if (got == 0) {
      return true;
    }
    link.silent_ = {};
    KEEPSTEP_ASSIGN_OR_RETURN(const bool whole, link.reader_.take_in(got, link.peer()));
    if (!whole) {
      continue;
    }
    std::string message = link.reader_.take();
    if (message.empty()) {
      continue;
    }
    bool wanted = false;
    {
      const std::lock_guard lock(link.mutex_);
      wanted = link.wish_ == Link::Wish::kGoOn;
    }
    if (wanted) {
      link.receiver_->received(std::move(message));
    }
  }
  return false;
}

void Hub::write(Link& link) {
  Link::Wish wish = Link::Wish::kGoOn;
  bool overfull = false;
  {
    const std::lock_guard lock(link.mutex_);
    wish = link.wish_;
    overfull = link.overfull_;
  }
  if (wish == Link::Wish::kAbort) {
    return close(link, absl::CancelledError("this side closed the connection to " + link.peer()));
  }
  if (overfull) {
    return close(link, absl::ResourceExhaustedError(link.peer() + " has stopped reading: too much is queued for it"));
  }
  const StatusOr<TlsStream::Wait> wait = write_some(link);
  if (!wait.ok()) {
    // Read what the peer sent before it left. If that ends with its reason for leaving, report the reason.
    const StatusOr<bool> last_words = read_some(link, std::numeric_limits<int>::max());
    return close(link, last_words.ok() ? wait.status() : last_words.status());
  }
  watch(link, *wait == 0 ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

// Writes everything queued, as far as the socket accepts it; then the end, if requested.
StatusOr<TlsStream::Wait> Hub::write_some(Link& link) {
  while (true) {
    KEEPSTEP_ASSIGN_OR_RETURN(const bool more, encrypt_some(link));
    if (!more && !link.ended_) {
      const std::lock_guard lock(link.mutex_);
      if (link.wish_ == Link::Wish::kEnd && link.queue_.empty()) {  // more may have been queued since
        link.ended_ = true;
        KEEPSTEP_RETURN_IF_ERROR(link.stream_->end_writes());
      }
    }
    const size_t unsent = link.stream_->unsent_bytes();
    KEEPSTEP_ASSIGN_OR_RETURN(const TlsStream::Wait wait, link.stream_->flush());
    if (link.stream_->unsent_bytes() < unsent) {
      link.quiet_ = {};
    }
    if (wait != 0 || !more) {
      return wait;
    }
  }
}

// Whether there is more than fits into one system call.
StatusOr<bool> Hub::encrypt_some(Link& link) {
  while (link.stream_->unsent_bytes() < kBatchBytes) {
    if (!link.tail_left_.empty()) {
      const std::string_view part = link.tail_left_.substr(0, kBatchBytes);
      KEEPSTEP_RETURN_IF_ERROR(link.stream_->write(part));
      link.tail_left_.remove_prefix(part.size());
      continue;
    }
    link.tail_.reset();
    // Small messages share a record; a large one begins in the record that holds its length.
    std::string record;
    {
      const std::lock_guard lock(link.mutex_);
      while (!link.queue_.empty() && link.tail_left_.empty() && record.size() < TlsStream::kRecordBytes) {
        Link::Message message = std::move(link.queue_.front());
        link.queue_.pop_front();
        link.queued_bytes_ -= message.bytes();
        record += std::string_view(length_of_message(message.bytes()).data(), kLengthBytes);
        record += message.head;
        if (message.tail != nullptr) {
          const size_t room = TlsStream::kRecordBytes - std::min(record.size(), TlsStream::kRecordBytes);
          record += std::string_view(*message.tail).substr(0, room);
          link.tail_ = std::move(message.tail);
          link.tail_left_ = std::string_view(*link.tail_).substr(std::min(room, link.tail_->size()));
        }
      }
    }
    if (record.empty()) {
      return false;
    }
    KEEPSTEP_RETURN_IF_ERROR(link.stream_->write(record));
  }
  return true;
}

void Hub::watch(Link& link, uint32_t events) {
  if (link.events_ == events) {
    return;
  }
  link.events_ = events;
  epoll_event event{.events = events, .data = {.ptr = &link}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.stream_->fd(), &event) != 0) {
    close(link, errno_status("wait for " + link.peer()));
  }
}

void Hub::tick(std::chrono::milliseconds passed) {
  std::vector<std::shared_ptr<Link>> links;
  for (const auto& [key, link] : links_) {
    links.push_back(link);
  }
  for (const std::shared_ptr<Link>& link : links) {
    const LinkOptions& options = link->options_;
    link->silent_ += passed;
    link->quiet_ += passed;
    bool ends = false;
    {
      const std::lock_guard lock(link->mutex_);
      ends = link->wish_ == Link::Wish::kEnd;
    }
    if (ends && link->quiet_ >= options.linger) {
      close(*link, absl::DeadlineExceededError(link->peer() + " did not end its side of the connection"));
    } else if (options.ask_after.count() > 0 && link->silent_ >= kDeadAfter * options.ask_after) {
      close(*link, absl::UnavailableError(absl::StrFormat(
                       "%s has said nothing for %g s: its machine or the network is down, or it is stopped",
                       link->peer(), static_cast<double>(link->silent_.count()) / 1000)));
    } else if (options.ask_after.count() > 0 && link->quiet_ >= options.ask_after) {
      link->send("");
    }
  }
}

void Hub::close(Link& link, const Status& why) {
  {
    const std::lock_guard lock(link.mutex_);
    link.hub_ = nullptr;
    link.queue_.clear();
    link.queued_bytes_ = 0;
  }
  link.tail_left_ = {};
  link.tail_.reset();
  // Do not rely on close(): between fork and exec, a new process holds a copy of the socket.
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.stream_->fd(), nullptr);
  link.stream_.reset();
  const auto found = links_.find(&link);
  closed_.push_back(std::move(found->second));
  links_.erase(found);
  link.receiver_->closed(why);
}

}  // namespace keepstep::net
