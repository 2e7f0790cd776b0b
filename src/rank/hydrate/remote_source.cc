#include "rank/hydrate/remote_source.h"

#include <chrono>
#include <utility>

#include "base/short_turns.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using comm::Outcome;
using state::RemoteKind;

RemoteSource::RemoteSource(comm::Communicator& comm, comm::Rank self, std::byte* region, brain::Identity identity,
                           const std::atomic<uint32_t>* interrupted, std::set<comm::Rank> targets)
    : comm_(comm), self_(self), relay_(region, self, identity, interrupted), targets_(std::move(targets)) {
  thread_ = std::thread([this] { run(); });
}

RemoteSource::~RemoteSource() {
  if (!thread_.joinable()) {
    return;
  }
  state::RemoteRequest stop{.kind = static_cast<uint32_t>(RemoteKind::kStop)};
  const comm::OpId sent = comm_.send(comm::kWorld, &stop, sizeof(stop), self_, kTagHydrationRequest);
  thread_.join();
  if (!stopped_) {  // it had ended on its own: only this destructor receives the message
    state::RemoteRequest taken;
    (void)wait(comm_.receive(comm::kWorld, &taken, sizeof(taken), self_, kTagHydrationRequest));
  }
  (void)wait(sent);
}

bool RemoteSource::finish(int64_t limit_ns) {
  if (thread_.joinable()) {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return over_; })) {
      return false;
    }
    lock.unlock();
    thread_.join();
  }
  return true;
}

void RemoteSource::post(Incoming& incoming) {
  incoming.op =
      comm_.receive(comm::kWorld, &incoming.request, sizeof(incoming.request), comm::kAnySource, kTagHydrationRequest);
}

comm::Completion RemoteSource::wait(comm::OpId op) {
  comm::Completion completion = comm_.wait(op);
  comm_.forget(op);
  return completion;
}

void RemoteSource::run() {
  take_short_turns();
  while (!targets_.empty() || !asking_.empty()) {
    while (!outgoing_.empty() && is_sent(outgoing_.front())) {
      wait_first_sent();
    }
    const bool has_room = asking_.size() + outgoing_.size() < state::kSlots;
    // Requests that have arrived are started first: the source copies while answers are sent.
    if (has_room && !targets_.empty() && take_request(asking_.empty())) {
      continue;
    }
    if (over_for_us_) {
      break;
    }
    if (!asking_.empty()) {
      answer();
    } else if (!has_room) {
      wait_first_sent();
    }
  }
  while (!outgoing_.empty()) {
    wait_first_sent();
  }
  const std::lock_guard lock(mutex_);
  over_ = true;
  ended_.notify_all();
}

// False: no request is here and we did not wait, or no more will come.
bool RemoteSource::take_request(bool wait_for_one) {
  Incoming& now = incoming_[turn_ % 2];
  if (now.op == 0) {
    post(now);
  }
  if (!wait_for_one && comm_.test(now.op).outcome == Outcome::kPending) {
    return false;
  }
  const comm::Completion came = wait(std::exchange(now.op, 0));
  if (came.outcome == Outcome::kInterrupted) {
    over_for_us_ = true;
    return false;
  }
  if (came.outcome == Outcome::kFailed) {
    return true;  // not one of our messages: larger than a request
  }
  const auto kind = static_cast<RemoteKind>(now.request.kind);
  if (kind == RemoteKind::kStop && came.source == self_) {
    stopped_ = over_for_us_ = true;
    return false;
  }
  if (kind == RemoteKind::kBye) {
    targets_.erase(came.source);
    return true;
  }
  if (!targets_.contains(came.source)) {
    return true;  // has already said goodbye, or was never to be served
  }
  post(incoming_[++turn_ % 2]);  // so the next one can arrive while we answer this one
  relay_.begin(now.request);
  asking_.push_back(came.source);
  return true;
}

void RemoteSource::answer() {
  const comm::Rank target = asking_.front();
  asking_.pop_front();
  const StatusOr<state::Relay::Answered> answered = relay_.answer();
  if (!answered.ok()) {
    return;  // interrupted: so is the next receive
  }
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.head = answered->head;
  outgoing.head_sent = comm_.send(comm::kWorld, &outgoing.head, sizeof(outgoing.head), target, kTagHydrationAnswer);
  outgoing.bytes_sent =
      comm_.send(comm::kWorld, answered->bytes.data(), answered->bytes.size(), target, kTagHydrationBytes);
}

bool RemoteSource::is_sent(const Outgoing& outgoing) {
  return comm_.test(outgoing.head_sent).outcome != Outcome::kPending &&
         comm_.test(outgoing.bytes_sent).outcome != Outcome::kPending;
}

void RemoteSource::wait_first_sent() {
  (void)wait(outgoing_.front().head_sent);
  (void)wait(outgoing_.front().bytes_sent);
  outgoing_.pop_front();
}

}  // namespace keepstep::rank
