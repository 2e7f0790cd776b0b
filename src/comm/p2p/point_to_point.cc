#include "comm/p2p/point_to_point.h"

#include <algorithm>
#include <utility>

#include "base/engine_thread.h"
#include "base/short_turns.h"
#include "comm/progress.h"
#include "comm/transport.h"

namespace keepstep::comm {
namespace {

std::vector<uint32_t> local_ranks(const Endpoint& endpoint) {
  std::vector<uint32_t> locals(endpoint.arenas.size());
  uint32_t here = 0;
  for (Rank rank = 0; rank < locals.size(); ++rank) {
    if (endpoint.arenas[rank] != nullptr) {
      locals[rank] = here++;
    }
  }
  return locals;
}

}  // namespace

PointToPoint::PointToPoint(const Layout& layout, const Endpoint& endpoint, Completions& completions,
                           std::atomic<uint64_t>& moved)
    : layout_(layout),
      endpoint_(endpoint),
      completions_(completions),
      moved_(moved),
      locals_(local_ranks(endpoint)),
      bell_(layout.bell(endpoint.generation, locals_[endpoint.self])),
      channels_(2 * endpoint.arenas.size()) {}

PointToPoint::~PointToPoint() {
  if (thread_.joinable()) {
    stop_.store(true, std::memory_order_seq_cst);
    ring(bell_);
    thread_.join();
  }
}

void PointToPoint::post(Transfer transfer) {
  transfer.deadline_ns = deadline_after(transfer.timeout_ns);
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(transfer));
    has_posted_.store(true, std::memory_order_seq_cst);
    if (!thread_.joinable()) {
      thread_ = start_engine_thread("ks-messages", [this] { loop(); });
    }
  }
  ring(bell_);
}

Channel& PointToPoint::channel(Rank peer, bool is_send) {
  std::unique_ptr<Channel>& channel = channels_[2 * peer + (is_send ? 1 : 0)];
  if (channel == nullptr) {
    const Rank from = is_send ? endpoint_.self : peer;
    const Rank to = is_send ? peer : endpoint_.self;
    Transport::Pair pair{};
    if (is_here(peer)) {
      pair.words = &layout_.pair(endpoint_.generation, locals_[from], locals_[to]);
      pair.ring = layout_.ring(endpoint_.arenas[from], locals_[to]);
      pair.ring_bytes = layout_.ring_bytes();
    } else {
      pair = endpoint_.transport->pair(from, to);
    }
    if (is_send) {
      channel = std::make_unique<SendChannel>(pair, endpoint_.self, completions_);
    } else {
      channel = std::make_unique<ReceiveChannel>(pair, endpoint_.self, completions_, peer, any_);
    }
  }
  return *channel;
}

void PointToPoint::tell(Rank peer) {
  if (is_here(peer)) {
    ring(layout_.bell(endpoint_.generation, locals_[peer]));
  } else {
    endpoint_.transport->changed(peer);
  }
}

bool PointToPoint::take_posted() {
  if (!has_posted_.load(std::memory_order_seq_cst)) {
    return false;
  }
  std::vector<Transfer> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
    has_posted_.store(false, std::memory_order_seq_cst);
  }
  for (Transfer& transfer : posted) {
    start(std::move(transfer));
  }
  return !posted.empty();
}

void PointToPoint::start(Transfer transfer) {
  if (!transfer.is_send) {
    transfer.order = ++receives_;
  }
  if (!transfer.from_any()) {
    channel(transfer.peer, transfer.is_send).add(std::move(transfer));
    return;
  }
  for (const Rank peer : std::vector(transfer.any_of)) {
    if (static_cast<ReceiveChannel&>(channel(peer, false)).take_offered(transfer)) {
      return;
    }
  }
  any_.add(std::move(transfer));
}

bool PointToPoint::advance_all() {
  bool any = take_posted();
  if (endpoint_.interrupted->load(std::memory_order_seq_cst) != 0) {
    for (const auto& channel : channels_) {
      if (channel != nullptr && !channel->idle()) {
        channel->end_all(Outcome::kInterrupted, {});
        any = true;
      }
    }
    any = any || !any_.empty();
    any_.end_all(Outcome::kInterrupted, completions_);
    return any;
  }
  const int64_t now_ns = monotonic_ns();
  if (!any_.empty()) {
    any_.expire(now_ns, completions_);
  }
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i] == nullptr) {
      continue;
    }
    const Channel::Change change = channels_[i]->advance(*endpoint_.interrupted);
    const bool gave_up = channels_[i]->expire(now_ns);
    if (change == Channel::Change::kNone && !gave_up) {
      continue;
    }
    note_moved(moved_);
    if (change == Channel::Change::kWords || gave_up) {
      tell(static_cast<Rank>(i / 2));
    }
    any = true;
  }
  return any;
}

int64_t PointToPoint::sleep_ns() const {
  int64_t deadline_ns = any_.next_deadline_ns();
  bool idle = any_.empty();
  for (const auto& channel : channels_) {
    if (channel != nullptr && !channel->idle()) {
      idle = false;
      deadline_ns = std::min(deadline_ns, channel->next_deadline_ns());
    }
  }
  return idle ? -1 : std::clamp<int64_t>(deadline_ns - monotonic_ns(), 0, kLookAgainNs);
}

void PointToPoint::loop() {
  take_short_turns();
  while (true) {
    while (advance_all()) {
    }
    const int64_t limit_ns = sleep_ns();
    const bool idle = limit_ns < 0;
    if (idle && stop_.load(std::memory_order_seq_cst) && !has_posted_.load(std::memory_order_seq_cst)) {
      return;
    }
    if (!idle && spin_.until([this] { return advance_all(); })) {
      continue;
    }
    sleep_on(bell_, limit_ns, [&] { return advance_all() || (idle && stop_.load(std::memory_order_seq_cst)); });
  }
}

}  // namespace keepstep::comm
