#include "comm/tcp/incoming_thread.h"

#include <algorithm>

#include "base/clock.h"
#include "base/engine_thread.h"
#include "base/log.h"
#include "base/short_turns.h"
#include "comm/sync.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int64_t kLongestSleepNs = 900'000'000;
constexpr char kUnknown[] =
    "it is of an unknown rank or stream, or of one that is connected already, or "
    "protects frames in another way";

}  // namespace

IncomingThread::IncomingThread(const TcpConfig& config, MessageLinks& links, PartGroups& parts,
                               std::function<void()> lost)
    : config_(config), links_(links), parts_(parts), lost_(std::move(lost)) {}

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
  counters.wrong_key += wrong_key_;
  counters.other_generation += other_generation_;
  counters.unknown_rank += unknown_rank_;
  counters.malformed += malformed_;
  counters.too_slow += too_slow_;
}

Verdict IncomingThread::judge(const Hello& hello) const {
  const bool known =
      hello.identity == config_.identity && hello.to == config_.self && hello.from < config_.addresses.size() &&
      hello.from != config_.self && hello.stream <= config_.streams &&
      (hello.stream == 0 ? !admitted_.contains(hello.from) : parts_.has_room(hello.from, hello.context, hello.stream));
  if (!known) {
    return Verdict::kUnknownRank;
  }
  return hello.protection == config_.protection ? Verdict::kWelcome : Verdict::kOtherProtection;
}

void IncomingThread::count(std::atomic<uint64_t>& counter, const std::string& what) {
  if (counter.fetch_add(1) == 0) {  // the first of a kind; the others are counted
    spdlog::warn("data plane: a connection was refused: {}", what);
  }
}

void IncomingThread::refused(const Status& why) {
  if (absl::IsFailedPrecondition(why)) {
    other_generation_.fetch_add(1);  // it tries again, and is over or will be welcome
  } else if (absl::IsUnauthenticated(why)) {
    count(wrong_key_, std::string(why.message()));
  } else if (!absl::IsUnavailable(why)) {
    too_slow_.fetch_add(1);
  }
}

void IncomingThread::hear(net::TlsStream connection) {
  {
    const std::lock_guard lock(mutex_);
    proved_.push_back(std::move(connection));
  }
  wake_up_.ring();
}

void IncomingThread::take_proved(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  for (net::TlsStream& connection : proved_) {
    newcomers_.push_back({std::make_unique<Reception>(std::move(connection), config_.protection,
                                                      [this](const Hello& hello) { return judge(hello); }),
                          now_ns + config_.handshake_ns});
  }
  proved_.clear();
}

void IncomingThread::admit(Reception& reception) {
  const Hello& hello = reception.hello();
  FrameReader reader(reception.take(), config_.protection, hello.stream);
  const bool taken = hello.stream == 0 ? admitted_.insert(hello.from).second
                                       : parts_.adopt(hello.from, hello.context, hello.stream, std::move(reader));
  if (!taken) {
    return count(unknown_rank_, kUnknown);
  }
  accepted_.fetch_add(1);
  if (hello.stream > 0) {
    return;
  }
  MessageLink::Incoming& from = links_.at(hello.from).incoming;
  const std::lock_guard in_use(from.in_use);
  // NOLINTNEXTLINE(bugprone-use-after-move): only that of another stream was moved
  from.stream = std::make_unique<IncomingStream>(std::move(reader));
}

void IncomingThread::hear_newcomers(int64_t now_ns) {
  std::erase_if(newcomers_, [&](Newcomer& newcomer) {
    switch (newcomer.reception->step()) {
      case Reception::State::kUnderWay:
        break;
      case Reception::State::kDone:
        admit(*newcomer.reception);
        return true;
      case Reception::State::kRefused:
        count(unknown_rank_, kUnknown);
        return true;
      case Reception::State::kMalformed:
        count(malformed_, "it does not speak keepstep's data protocol");
        return true;
      case Reception::State::kGone:
        return true;
    }
    if (now_ns >= newcomer.deadline_ns) {
      too_slow_.fetch_add(1);
      return true;
    }
    return false;
  });
}

IncomingStream::Came IncomingThread::advance(MessageLink& link, int64_t now_ns) {
  MessageLink::Incoming& in = link.incoming;
  const std::lock_guard in_use(in.in_use);
  if (in.stream == nullptr) {
    return {};
  }
  const IncomingStream::Came came = in.stream->advance(link.mirror, *moved_);
  if (came.lost) {
    malformed_.fetch_add(came.malformed ? 1 : 0);
    link.lose(in.stream->why(), now_ns);
    in.stream.reset();
    lost_();
  }
  return came;
}

// What to poll for, and until when.
int64_t IncomingThread::collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const {
  int64_t until_ns = monotonic_ns() + kLongestSleepNs;
  fds.clear();
  fds.push_back({wake_up_.fd(), POLLIN, 0});
  for (const Newcomer& newcomer : newcomers_) {
    fds.push_back({newcomer.reception->fd(), newcomer.reception->events(), 0});
    until_ns = std::min(until_ns, newcomer.deadline_ns);
  }
  for (const MessageLink* link : links) {
    if (link->incoming.stream != nullptr) {
      fds.push_back({link->incoming.stream->fd(), POLLIN, 0});
    }
  }
  return until_ns;
}

void IncomingThread::loop() {
  take_short_turns();
  std::vector<pollfd> fds;
  while (true) {
    wake_up_.begin_round();
    if (stop_.load()) {
      return;
    }
    const int64_t now_ns = monotonic_ns();
    take_proved(now_ns);
    hear_newcomers(now_ns);
    const std::vector<MessageLink*> links = links_.all();
    bool changed = false;
    bool more = false;
    for (MessageLink* link : links) {
      const IncomingStream::Came came = advance(*link, now_ns);
      changed = changed || came.changed || came.lost;
      more = more || came.more;
    }
    if (changed) {
      ring(*messages_);
    }
    if (!more) {
      wake_up_.sleep(fds, collect(links, fds));
    }
  }
}

}  // namespace keepstep::comm::tcp
