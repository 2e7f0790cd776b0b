#include "comm/tcp/message_links.h"

namespace keepstep::comm::tcp {

void MessageLink::lose(const std::string& why, int64_t now_ns) {
  const std::lock_guard lock(losing_);
  if (lost_at_ns() == 0) {
    why_lost_ = why;
    lost_at_ns_.store(now_ns, std::memory_order_release);
  }
}

MessageLink& MessageLinks::link(Rank peer) { return links_.try_emplace(peer, config_, tls_, peer).first->second; }

MessageLink& MessageLinks::at(Rank peer) {
  const std::lock_guard lock(mutex_);
  return link(peer);
}

std::vector<MessageLink*> MessageLinks::all() {
  const std::lock_guard lock(mutex_);
  std::vector<MessageLink*> links;
  links.reserve(links_.size());
  for (auto& [peer, link] : links_) {
    links.push_back(&link);
  }
  return links;
}

Transport::Pair MessageLinks::pair(Rank from, Rank to) {
  const std::lock_guard lock(mutex_);
  const bool outgoing = from == config_.self;
  const Rank peer = outgoing ? to : from;
  MessageLink& with = link(peer);
  Bytes& bytes = bytes_.try_emplace({peer, outgoing}, with, outgoing).first->second;
  PairMirror& mirror = with.mirror;
  return {outgoing ? &mirror.outgoing() : &mirror.incoming(), nullptr, 0, &bytes, &mirror.why_ended()};
}

void MessageLinks::Bytes::cancel() {
  if (bytes().cancelled()) {
    return;
  }
  bytes().cancel();  // first: what is given out already is then soon gone, and so is who holds the lock
  if (outgoing_) {
    const std::lock_guard lock(link_.outgoing.in_use);
    link_.outgoing.stream.copy_queued();
    return;
  }
  const std::lock_guard lock(link_.incoming.in_use);
  if (link_.incoming.stream != nullptr) {
    link_.incoming.stream->drop();
  }
}

}  // namespace keepstep::comm::tcp
