#include "comm/tcp/progress_thread.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/engine_thread.h"
#include "comm/progress.h"
#include "comm/sync.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int64_t kAcceptPauseNs = 100'000'000;  // after accept failed, say for want of descriptors
constexpr int64_t kLongestSleepNs = 900'000'000;
constexpr int kMostFramesAtOnce = 32;  // of one link, then the others have their turn
constexpr size_t kDroppedAtOnce = 16 << 10;

}  // namespace

// ---- stream 0, in

// What is left of the payload under way, and the next header with it.
std::optional<ProgressThread::Incoming::State> ProgressThread::Incoming::read() {
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

bool ProgressThread::Incoming::begin(PairMirror& mirror) {
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

ProgressThread::Incoming::State ProgressThread::Incoming::advance(PairMirror& mirror, std::atomic<uint64_t>& moved) {
  bool changed = false;
  int frames = 0;
  while (frames < kMostFramesAtOnce) {
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
      if (frame_->kind == FrameKind::kBytes) {
        note_moved(moved);
      }
      changed = changed || frame_->kind != FrameKind::kBytes || ends_message_;
      frame_.reset();
      ++frames;
    }
  }
  return changed ? State::kChanged : State::kWait;
}

ProgressThread::Incoming::State ProgressThread::Incoming::malformed() {
  why_ = "it sent a malformed frame";
  return State::kMalformed;
}

// ---- the thread

ProgressThread::ProgressThread(const TcpConfig& config, Fd listener, Adopt adopt)
    : config_(config),
      listener_(std::move(listener)),
      adopt_(std::move(adopt)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  KEEPSTEP_CHECK(wake_fd_.valid(), "no descriptor for an eventfd; raise the limit on open files with `ulimit -n`");
}

ProgressThread::~ProgressThread() {
  if (thread_.joinable()) {
    stop_.store(true);
    changed();
    thread_.join();
  }
}

void ProgressThread::start(const std::atomic<uint32_t>& interrupted, Bell& messages, std::atomic<uint64_t>& moved) {
  interrupted_ = &interrupted;
  messages_ = &messages;
  moved_ = &moved;
  thread_ = start_engine_thread("ks-transport", [this] { loop(); });
}

void ProgressThread::changed() {
  if (!woken_.exchange(true)) {
    (void)eventfd_write(wake_fd_.get(), 1);
  }
}

ProgressThread::Link& ProgressThread::link(Rank peer) {
  Link& link = links_[peer];
  if (link.mirror == nullptr) {
    link.mirror = std::make_unique<PairMirror>(peer, config_.message_frame_bytes);
    link.out = std::make_unique<SendStream>(config_, peer, 0);
  }
  return link;
}

Transport::Pair ProgressThread::pair(Rank from, Rank to) {
  const std::lock_guard lock(mutex_);
  const bool outgoing = from == config_.self;
  const Rank peer = outgoing ? to : from;
  Link& with = link(peer);
  LinkBytes& bytes = bytes_.try_emplace({peer, outgoing}, with, outgoing).first->second;
  PairMirror& mirror = *with.mirror;
  return {outgoing ? &mirror.outgoing() : &mirror.incoming(), nullptr, 0, &bytes, &mirror.why_ended()};
}

void ProgressThread::LinkBytes::cancel() {
  if (bytes().cancelled()) {
    return;
  }
  const std::lock_guard lock(link_.in_use);
  bytes().cancel();
  if (outgoing_) {
    link_.out->copy_queued();
  } else if (link_.in != nullptr) {
    link_.in->drop();
  }
}

void ProgressThread::add_counters(Transport::Counters& counters) const {
  counters.accepted += accepted_;
  counters.wrong_token += wrong_token_;
  counters.old_generation += old_generation_;
  counters.unknown_rank += unknown_rank_;
  counters.malformed += malformed_;
  counters.too_slow += too_slow_;
}

Verdict ProgressThread::judge(const Hello& hello) const {
  if (hello.identity != config_.identity) {
    return hello.identity < config_.identity ? Verdict::kOldGeneration : Verdict::kNotYet;
  }
  const bool known = hello.to == config_.self && hello.from < config_.addresses.size() && hello.from != config_.self &&
                     hello.stream <= config_.streams && !admitted_.contains({hello.from, hello.stream});
  return known ? Verdict::kWelcome : Verdict::kUnknownRank;
}

void ProgressThread::refuse(Refusal why) {
  const auto count = [](std::atomic<uint64_t>& counter, const char* what) {
    if (counter.fetch_add(1) == 0) {  // the first of a kind; the others are counted
      spdlog::warn("data plane: a connection was refused: {}", what);
    }
  };
  switch (why) {
    case Refusal::kWrongToken:
      return count(wrong_token_, "it does not know the job token");
    case Refusal::kOldGeneration:
      return count(old_generation_, "it is of an older generation");
    case Refusal::kUnknownRank:
      return count(unknown_rank_, "it is of an unknown rank or stream, or of one that is connected already");
    case Refusal::kMalformed:
      return count(malformed_, "it does not speak keepstep's data protocol");
    case Refusal::kNone:
    case Refusal::kNotYet:
    case Refusal::kGone:
      return;
  }
}

void ProgressThread::accept_all(int64_t now_ns) {
  while (now_ns >= accept_again_ns_) {
    StatusOr<Fd> fd = accept_tcp(listener_.get());
    if (!fd.ok()) {
      spdlog::warn("data plane: {}", std::string(fd.status().message()));
      accept_again_ns_ = now_ns + kAcceptPauseNs;
      return;
    }
    if (!fd->valid()) {
      return;
    }
    if (strangers_.size() >= config_.most_strangers) {  // the one that waits longest makes room
      strangers_.erase(strangers_.begin());
      too_slow_.fetch_add(1);
    }
    strangers_.push_back({std::make_unique<Reception>(
                              *std::move(fd), config_.token, [this](const Hello& hello) { return judge(hello); },
                              config_.socket_buffer_bytes),
                          now_ns + config_.handshake_ns});
  }
}

void ProgressThread::admit(Reception& reception) {
  const Hello& hello = reception.hello();
  if (!admitted_.insert({hello.from, hello.stream}).second) {
    return refuse(Refusal::kUnknownRank);
  }
  accepted_.fetch_add(1);
  if (hello.stream > 0) {
    return adopt_(hello.from, hello.stream, reception.take());
  }
  const std::lock_guard lock(mutex_);
  Link& from = link(hello.from);
  const std::lock_guard in_use(from.in_use);
  from.in = std::make_unique<Incoming>(reception.take());
}

void ProgressThread::hear(int64_t now_ns) {
  std::erase_if(strangers_, [&](Stranger& stranger) {
    switch (stranger.reception->step()) {
      case Reception::State::kUnderWay:
        break;
      case Reception::State::kDone:
        admit(*stranger.reception);
        return true;
      case Reception::State::kRefused:
        refuse(stranger.reception->refusal());
        return true;
    }
    if (now_ns >= stranger.deadline_ns) {
      too_slow_.fetch_add(1);
      return true;
    }
    return false;
  });
}

void ProgressThread::lose(Link& link, const std::string& why, int64_t now_ns) {
  if (link.lost_at_ns == 0) {
    link.lost_at_ns = now_ns;
    link.why = why;
  }
}

// What the peer does not know yet. True when a message left as a whole.
bool ProgressThread::tell(Link& link, int64_t now_ns) {
  bool over = false;
  for (int frames = 0; frames < kMostFramesAtOnce; ++frames) {
    link.out->advance(now_ns);
    if (!link.out->idle() || !link.out->lost().empty()) {
      break;
    }
    if (link.leaving > 0) {
      link.mirror->outgoing_bytes().add_moved(link.leaving);
      note_moved(*moved_);
      over = over || link.leaving_ends_message;
      link.leaving = 0;
    }
    // Words leave together with the bytes that follow them.
    while (link.leaving == 0) {
      const std::optional<PairMirror::Telling> telling = link.mirror->next();
      if (!telling.has_value()) {
        break;
      }
      link.out->push(telling->frame, telling->payload, nullptr);
      link.leaving = telling->frame.bytes;
      link.leaving_ends_message = telling->ends_message;
    }
    if (link.out->idle()) {
      break;
    }
  }
  return over;
}

bool ProgressThread::advance(Link& link, int64_t now_ns) {
  const std::lock_guard in_use(link.in_use);
  bool heard = false;
  if (link.in != nullptr) {
    const Incoming::State state = link.in->advance(*link.mirror, *moved_);
    heard = state != Incoming::State::kWait;
    if (state == Incoming::State::kLost || state == Incoming::State::kMalformed) {
      malformed_.fetch_add(state == Incoming::State::kMalformed ? 1 : 0);
      lose(link, link.in->why(), now_ns);
      link.in.reset();
    }
  }
  if (link.out->lost().empty()) {
    heard = tell(link, now_ns) || heard;
  }
  if (!link.out->lost().empty()) {
    lose(link, link.out->lost(), now_ns);
  }
  if (link.lost_at_ns != 0 && !link.ended && now_ns - link.lost_at_ns >= config_.patience_ns) {
    link.ended = true;  // no interruption came
    link.mirror->end(link.why);
    heard = true;
  }
  return heard;
}

// What to poll for, and until when.
int64_t ProgressThread::collect(std::vector<pollfd>& fds) {
  int64_t until_ns = monotonic_ns() + kLongestSleepNs;
  if (stop_at_ns_ != 0) {
    until_ns = std::min(until_ns, stop_at_ns_);
  }
  fds.clear();
  fds.push_back({wake_fd_.get(), POLLIN, 0});
  if (accept_again_ns_ > monotonic_ns()) {
    until_ns = std::min(until_ns, accept_again_ns_);
  } else {
    fds.push_back({listener_.get(), POLLIN, 0});
  }
  for (const Stranger& stranger : strangers_) {
    fds.push_back({stranger.reception->fd(), stranger.reception->events(), 0});
    until_ns = std::min(until_ns, stranger.deadline_ns);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, link] : links_) {
    if (link.in != nullptr) {
      fds.push_back({link.in->fd(), POLLIN, 0});
    }
    if (const short events = link.out->events(); events != 0) {
      fds.push_back({link.out->fd(), events, 0});
    }
    until_ns = std::min(until_ns, link.out->next_try_ns());
    if (link.lost_at_ns != 0 && !link.ended) {
      until_ns = std::min(until_ns, link.lost_at_ns + config_.patience_ns);
    }
  }
  return until_ns;
}

bool ProgressThread::may_end() {
  const int64_t now_ns = monotonic_ns();
  if (stop_at_ns_ == 0) {
    stop_at_ns_ = now_ns + config_.patience_ns;
  }
  const std::lock_guard lock(mutex_);
  return interrupted_->load() != 0 || now_ns >= stop_at_ns_ ||
         std::all_of(links_.begin(), links_.end(),
                     [](const auto& entry) { return entry.second.out->idle() || entry.second.lost_at_ns != 0; });
}

void ProgressThread::loop() {
  std::vector<pollfd> fds;
  std::vector<Link*> links;
  while (true) {
    woken_.store(false);
    const bool stopping = stop_.load();  // before we look for what is left to tell
    const int64_t now_ns = monotonic_ns();
    accept_all(now_ns);
    hear(now_ns);
    {
      const std::lock_guard lock(mutex_);
      links.clear();
      for (auto& [peer, link] : links_) {
        links.push_back(&link);  // a map's elements stay where they are
      }
    }
    bool heard = false;
    for (Link* link : links) {
      heard = advance(*link, now_ns) || heard;
    }
    if (heard) {
      ring(*messages_);
    }
    if (stopping && may_end()) {
      return;
    }
    const int64_t left_ns = std::max<int64_t>(0, collect(fds) - monotonic_ns());
    const timespec timeout{0, static_cast<long>(left_ns)};
    ppoll(fds.data(), fds.size(), &timeout, nullptr);
    if (fds[0].revents != 0) {
      eventfd_t count = 0;
      (void)eventfd_read(wake_fd_.get(), &count);
    }
  }
}

}  // namespace keepstep::comm::tcp
