#include "comm/tcp/incoming_thread.h"

#include <algorithm>

#include "base/clock.h"
#include "base/engine_thread.h"
#include "base/log.h"
#include "comm/sync.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int64_t kAcceptPauseNs = 100'000'000;  // after accept failed, say for want of descriptors
constexpr int64_t kLongestSleepNs = 900'000'000;

}  // namespace

IncomingThread::IncomingThread(const TcpConfig& config, MessageLinks& links, PartGroups& parts, Fd listener,
                               std::function<void()> lost)
    : config_(config), links_(links), parts_(parts), listener_(std::move(listener)), lost_(std::move(lost)) {}

IncomingThread::~IncomingThread() {
  if (thread_.joinable()) {
    stop_.store(true);
    wake_up_.ring();
    thread_.join();
  }
}

void IncomingThread::start(Bell& messages, std::atomic<uint64_t>& moved) {
  messages_ = &messages;
  moved_ = &moved;
  thread_ = start_engine_thread("ks-incoming", [this] { loop(); });
}

void IncomingThread::add_counters(Transport::Counters& counters) const {
  counters.accepted += accepted_;
  counters.wrong_token += wrong_token_;
  counters.old_generation += old_generation_;
  counters.unknown_rank += unknown_rank_;
  counters.malformed += malformed_;
  counters.too_slow += too_slow_;
}

Verdict IncomingThread::judge(const Hello& hello) const {
  if (hello.identity != config_.identity) {
    return hello.identity < config_.identity ? Verdict::kOldGeneration : Verdict::kNotYet;
  }
  const bool known =
      hello.to == config_.self && hello.from < config_.addresses.size() && hello.from != config_.self &&
      hello.stream <= config_.streams &&
      (hello.stream == 0 ? !admitted_.contains(hello.from) : parts_.has_room(hello.from, hello.context, hello.stream));
  return known ? Verdict::kWelcome : Verdict::kUnknownRank;
}

void IncomingThread::refuse(Refusal why) {
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

void IncomingThread::accept_all(int64_t now_ns) {
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

void IncomingThread::admit(Reception& reception) {
  const Hello& hello = reception.hello();
  const bool taken = hello.stream == 0 ? admitted_.insert(hello.from).second
                                       : parts_.adopt(hello.from, hello.context, hello.stream, reception.take());
  if (!taken) {
    return refuse(Refusal::kUnknownRank);
  }
  accepted_.fetch_add(1);
  if (hello.stream > 0) {
    return;
  }
  MessageLink::Incoming& from = links_.at(hello.from).incoming;
  const std::lock_guard in_use(from.in_use);
  from.stream = std::make_unique<IncomingStream>(reception.take());
}

void IncomingThread::hear(int64_t now_ns) {
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

bool IncomingThread::advance(MessageLink& link, int64_t now_ns) {
  MessageLink::Incoming& in = link.incoming;
  const std::lock_guard in_use(in.in_use);
  if (in.stream == nullptr) {
    return false;
  }
  const IncomingStream::State state = in.stream->advance(link.mirror, *moved_);
  if (state == IncomingStream::State::kLost || state == IncomingStream::State::kMalformed) {
    malformed_.fetch_add(state == IncomingStream::State::kMalformed ? 1 : 0);
    link.lose(in.stream->why(), now_ns);
    in.stream.reset();
    lost_();
  }
  return state != IncomingStream::State::kWait;
}

// What to poll for, and until when.
int64_t IncomingThread::collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const {
  int64_t until_ns = monotonic_ns() + kLongestSleepNs;
  fds.clear();
  fds.push_back({wake_up_.fd(), POLLIN, 0});
  if (accept_again_ns_ > monotonic_ns()) {
    until_ns = std::min(until_ns, accept_again_ns_);
  } else {
    fds.push_back({listener_.get(), POLLIN, 0});
  }
  for (const Stranger& stranger : strangers_) {
    fds.push_back({stranger.reception->fd(), stranger.reception->events(), 0});
    until_ns = std::min(until_ns, stranger.deadline_ns);
  }
  for (const MessageLink* link : links) {
    if (link->incoming.stream != nullptr) {
      fds.push_back({link->incoming.stream->fd(), POLLIN, 0});
    }
  }
  return until_ns;
}

void IncomingThread::loop() {
  std::vector<pollfd> fds;
  while (true) {
    wake_up_.begin_round();
    if (stop_.load()) {
      return;
    }
    const int64_t now_ns = monotonic_ns();
    accept_all(now_ns);
    hear(now_ns);
    const std::vector<MessageLink*> links = links_.all();
    bool heard = false;
    for (MessageLink* link : links) {
      heard = advance(*link, now_ns) || heard;
    }
    if (heard) {
      ring(*messages_);
    }
    wake_up_.sleep(fds, collect(links, fds));
  }
}

}  // namespace keepstep::comm::tcp
