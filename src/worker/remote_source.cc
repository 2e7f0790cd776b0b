#include "worker/remote_source.h"

#include <chrono>
#include <utility>

#include "worker/reserved_tags.h"

namespace keepstep::worker {

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
  if (!stopped_) {  // it had ended by itself: nobody takes this message but we
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
  size_t turn = 0;
  while (!targets_.empty()) {
    Incoming& now = incoming_[turn % 2];
    if (now.op == 0) {
      post(now);
    }
    const comm::Completion came = wait(std::exchange(now.op, 0));
    if (came.outcome == Outcome::kInterrupted) {
      break;
    }
    if (came.outcome == Outcome::kFailed) {
      continue;  // not one of our messages: larger than a request
    }
    const auto kind = static_cast<RemoteKind>(now.request.kind);
    if (kind == RemoteKind::kStop && came.source == self_) {
      stopped_ = true;
      break;
    }
    if (kind == RemoteKind::kBye) {
      targets_.erase(came.source);
      continue;
    }
    if (!targets_.contains(came.source)) {
      continue;  // said goodbye already, or never was to be served
    }
    post(incoming_[++turn % 2]);  // so that the next one comes while we answer this
    answer(now.request, came.source);
  }
  for (Outgoing& outgoing : outgoing_) {
    wait_sent(outgoing);
  }
  const std::lock_guard lock(mutex_);
  over_ = true;
  ended_.notify_all();
}

void RemoteSource::answer(const state::RemoteRequest& request, comm::Rank target) {
  // The answer's bytes lie in a slot of the region that is used again for the kSlots-th request after this one.
  Outgoing& outgoing = outgoing_[turn_++ % outgoing_.size()];
  wait_sent(outgoing);
  const StatusOr<state::Relay::Answered> answered = relay_.answer(request);
  if (!answered.ok()) {
    return;  // interrupted: so is the receive that comes next
  }
  outgoing.head = answered->head;
  outgoing.head_sent = comm_.send(comm::kWorld, &outgoing.head, sizeof(outgoing.head), target, kTagHydrationAnswer);
  outgoing.bytes_sent =
      comm_.send(comm::kWorld, answered->bytes.data(), answered->bytes.size(), target, kTagHydrationBytes);
}

void RemoteSource::wait_sent(Outgoing& outgoing) {
  for (comm::OpId* op : {&outgoing.head_sent, &outgoing.bytes_sent}) {
    if (*op != 0) {
      (void)wait(std::exchange(*op, 0));
    }
  }
}

}  // namespace keepstep::worker
