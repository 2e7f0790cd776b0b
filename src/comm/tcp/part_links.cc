#include "comm/tcp/part_links.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "comm/progress.h"
#include "comm/sync.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int kMaxTries = 16;

}  // namespace

PartLinks::PartLinks(PartsShared& shared, uint64_t context)
    : shared_(shared), config_(shared.config), context_(context) {}

PartLinks::Peer& PartLinks::peer(Rank rank) {
  return peers_.try_emplace(rank, Peer{.inbox = {.context = context_, .given_up = given_up_.has_value()}})
      .first->second;
}

SendStream& PartLinks::out(Rank rank, Peer& peer, size_t stream) {
  if (peer.out.empty()) {
    for (uint32_t i = 0; i < config_.streams; ++i) {
      peer.out.push_back(std::make_unique<SendStream>(config_, shared_.tls, rank, i + 1, context_));
    }
  }
  return *peer.out[stream];
}

void PartLinks::send(PartRequest& request, Rank to, const PartKey& key, std::span<const std::byte> bytes) {
  request = {.peer = to, .key = key, .bytes = bytes.size(), .left = bytes.size(), .begun = true};
  Peer& link = peer(to);
  const bool striped = bytes.size() > config_.stripe_bytes;
  size_t offset = 0;
  do {
    const size_t n = std::min(config_.stripe_bytes, bytes.size() - offset);
    const Frame frame{.kind = FrameKind::kPart,
                      .part = key.part,
                      .bytes = static_cast<uint32_t>(n),
                      .context = key.context,
                      .operation = key.operation,
                      .offset = offset,
                      .total = bytes.size()};
    out(to, link, striped ? next_stream_++ % config_.streams : 0).push(frame, bytes.data() + offset, &request);
    offset += n;
  } while (offset < bytes.size());
  shared_.bytes_sent.fetch_add(bytes.size(), std::memory_order_relaxed);
  const int64_t now_ns = monotonic_ns();
  for (const auto& stream : link.out) {
    advance(link, *stream, now_ns);
  }
}

void PartLinks::receive(PartRequest& request, Rank from, const PartKey& key, std::span<std::byte> buffer) {
  request = {.peer = from, .key = key};
  peer(from).inbox.posted.push_back({&request, buffer});
}

void PartLinks::adopt(Rank from, FrameReader connection) {
  {
    const std::lock_guard lock(mutex_);
    adopted_.push_back({from, std::move(connection)});
    has_adopted_.store(true, std::memory_order_release);
  }
  wake();
}

void PartLinks::take_adopted() {
  if (!has_adopted_.load(std::memory_order_acquire)) {
    return;
  }
  const std::lock_guard lock(mutex_);
  for (Adopted& adopted : adopted_) {
    peer(adopted.from).in.push_back(std::make_unique<ReceiveStream>(std::move(adopted.connection)));
  }
  adopted_.clear();
  has_adopted_.store(false, std::memory_order_relaxed);
}

void PartLinks::lose(Peer& peer, const std::string& why) {
  if (peer.lost.empty()) {
    peer.lost = why;
    peer.lost_at_ns = monotonic_ns();
  }
}

bool PartLinks::advance(Peer& peer, SendStream& stream, int64_t now_ns) {
  const bool any = stream.advance(now_ns);
  if (!stream.lost().empty()) {
    lose(peer, stream.lost());
  }
  return any;
}

bool PartLinks::advance(Peer& peer, ReceiveStream& stream) {
  const uint64_t before = peer.inbox.bytes_taken;
  std::optional<GivenUp> told;
  const bool any = stream.advance(peer.inbox, told);
  shared_.bytes_received.fetch_add(peer.inbox.bytes_taken - before, std::memory_order_relaxed);
  if (told.has_value()) {
    end_group(*told);
  }
  if (!stream.lost().empty()) {
    if (stream.malformed() && peer.lost.empty()) {
      shared_.malformed.fetch_add(1, std::memory_order_relaxed);
    }
    lose(peer, stream.lost());
  }
  return any;
}

bool PartLinks::advance_all() {
  take_adopted();
  const int64_t now_ns = monotonic_ns();
  bool any = false;
  for (auto& [rank, peer] : peers_) {
    for (const auto& stream : peer.out) {
      any = advance(peer, *stream, now_ns) || any;
    }
    if (!peer.inbox.posted.empty()) {
      for (const auto& stream : peer.in) {
        any = advance(peer, *stream) || any;
      }
    }
  }
  return any;
}

void PartLinks::sleep(int64_t until_ns) {
  std::vector<pollfd> fds{{wake_up_.fd(), POLLIN, 0}};
  for (const auto& [rank, peer] : peers_) {
    for (const auto& stream : peer.out) {
      if (const short events = stream->events(); events != 0) {
        fds.push_back({stream->fd(), events, 0});
      }
      until_ns = std::min(until_ns, stream->next_try_ns());
    }
    for (const auto& stream : peer.in) {
      if (!peer.inbox.posted.empty() && !stream->stuck() && stream->lost().empty()) {
        fds.push_back({stream->fd(), POLLIN, 0});
      }
    }
  }
  wake_up_.sleep(fds, std::min(until_ns, monotonic_ns() + kLookAgainNs));
}

Waited PartLinks::wait(const PartRequest& request, int64_t deadline_ns, const std::atomic<uint64_t>& given_up) {
  while (true) {
    wake_up_.begin_round();
    bool any = advance_all();
    for (int i = 0; i < tries_ && !any; ++i) {
      any = advance_all();
      if (any) {
        tries_ = std::min(2 * tries_, kMaxTries);
      }
    }
    if (any) {
      note_moved(*shared_.moved);
    }
    if (request.done) {
      return Waited::kDone;
    }
    if (shared_.interrupted->load(std::memory_order_seq_cst) != 0) {
      return Waited::kInterrupted;
    }
    if (given_up.load(std::memory_order_seq_cst) != 0 || given_up_.has_value()) {
      return Waited::kGivenUp;
    }
    int64_t until_ns = deadline_ns;
    const int64_t now_ns = monotonic_ns();
    if (const Peer& link = peer(request.peer); !link.lost.empty()) {
      if (now_ns - link.lost_at_ns >= config_.patience_ns) {
        return Waited::kLost;
      }
      until_ns = std::min(until_ns, link.lost_at_ns + config_.patience_ns);
    }
    if (any) {
      continue;
    }
    if (now_ns >= deadline_ns) {
      return Waited::kTimedOut;
    }
    tries_ = std::max(1, tries_ / 2);
    sleep(until_ns);
  }
}

void PartLinks::cancel() {
  for (auto& [rank, peer] : peers_) {
    peer.inbox.posted.clear();
    for (const auto& stream : peer.in) {
      stream->cancel();
    }
    for (const auto& stream : peer.out) {
      stream->cancel();
    }
  }
}

// The first word counts. What still comes for the group is dropped.
void PartLinks::end_group(GivenUp who) {
  if (given_up_.has_value()) {
    return;
  }
  given_up_ = who;
  for (auto& [rank, peer] : peers_) {
    peer.inbox.given_up = true;
  }
}

void PartLinks::give_up(GivenUp who) {
  if (std::exchange(told_, true)) {
    return;
  }
  end_group(who);
  const int64_t now_ns = monotonic_ns();
  for (auto& [rank, peer] : peers_) {
    if (!peer.out.empty() && peer.out[0]->connected()) {
      peer.out[0]->push({.kind = FrameKind::kGiveUp,
                         .part = who.by,
                         .context = context_,
                         .operation = who.link ? uint64_t{who.to} + 1 : 0},
                        nullptr, nullptr);
      advance(peer, *peer.out[0], now_ns);
    }
  }
}

std::string PartLinks::why_lost(Rank peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? std::string() : it->second.lost;
}

}  // namespace keepstep::comm::tcp
