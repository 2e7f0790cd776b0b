#include "comm/p2p/channel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"
#include "comm/sync.h"

namespace keepstep::comm {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;  // a counter is what the other end may be about to sleep on

bool expired(const Transfer& transfer, int64_t now_ns) { return transfer.deadline_ns <= now_ns; }

// Tells the caller how a transfer ended; an interrupted receive is filled with zeros.
void complete(const Transfer& transfer, Outcome outcome, const std::string& why, Completions& completions) {
  if (outcome == Outcome::kInterrupted && !transfer.is_send && transfer.bytes > 0) {
    std::memset(transfer.data, 0, transfer.bytes);
  }
  completions.complete(transfer.op, outcome, why.empty() ? why : absl::StrCat(transfer.title, ": ", why),
                       transfer.group_peer);
}

}  // namespace

void Transfer::came_from(Rank world_rank) {
  group_peer = static_cast<Rank>(std::find(any_of.begin(), any_of.end(), world_rank) - any_of.begin());
  peer = world_rank;
}

// ---- receives from any source

void AnySource::add(Transfer transfer) {
  const Key key(transfer.context, transfer.tag);
  waiting_.emplace(key, std::move(transfer));
}

std::optional<Transfer> AnySource::take(const Key& key, Rank peer, uint64_t before) {
  const auto it = waiting_.find(key);  // the first of equal ones
  if (it == waiting_.end() || it->second.order > before) {
    return std::nullopt;
  }
  Transfer transfer = std::move(it->second);
  waiting_.erase(it);
  transfer.came_from(peer);
  return transfer;
}

int64_t AnySource::next_deadline_ns() const {
  int64_t next = kNoDeadline;
  for (const auto& [key, transfer] : waiting_) {
    next = std::min(next, transfer.deadline_ns);
  }
  return next;
}

void AnySource::expire(int64_t now_ns, Completions& completions) {
  std::erase_if(waiting_, [&](const auto& entry) {
    const bool over = expired(entry.second, now_ns);
    if (over) {
      complete(entry.second, Outcome::kFailed,
               absl::StrCat("nothing arrived within ", seconds(entry.second.timeout_ns)), completions);
    }
    return over;
  });
}

void AnySource::end_all(Outcome outcome, Completions& completions) {
  for (const auto& [key, transfer] : waiting_) {
    complete(transfer, outcome, {}, completions);
  }
  waiting_.clear();
}

// ---- both ends

Channel::Change Channel::advance(const std::atomic<uint32_t>& interrupted) {
  if (const uint64_t by = pair_.given_up_by.load(kSeqCst); by != 0) {
    if (idle()) {
      return Change::kNone;
    }
    const GivenUp who = GivenUp::from(by);
    if (who.link) {
      const std::string why = absl::StrFormat(
          "the link between rank %d and rank %d broke (%s), and no new generation "
          "began. Is that rank's process, or its node, gone?",
          self_, who.by, *why_lost_);
      completions_.note_broken_link(why);
      end_all(Outcome::kFailed, why);
    } else {
      end_all(Outcome::kFailed, absl::StrFormat("rank %d gave up a transfer between these two ranks half way; they "
                                                "cannot exchange messages in this generation any more",
                                                who.by));
    }
    return Change::kWords;
  }
  return move(interrupted);
}

bool Channel::expire(int64_t now_ns) {
  if (next_deadline_ns() > now_ns || end_expired(now_ns)) {
    return false;
  }
  give_up();
  return true;
}

void Channel::give_up() {
  uint64_t nobody = 0;
  pair_.given_up_by.compare_exchange_strong(nobody, GivenUp{self_}.word(), kSeqCst);
}

Channel::Change Channel::change_of(bool words, bool moved) const {
  if (words || (moved && bytes_ == nullptr)) {  // a ring's counters are words, too
    return Change::kWords;
  }
  return moved ? Change::kHere : Change::kNone;
}

void Channel::stop_bytes() {
  if (bytes_ != nullptr) {
    bytes_->cancel();
  }
}

void Channel::end(const Transfer& transfer, Outcome outcome, const std::string& why) {
  complete(transfer, outcome, why, completions_);
}

void Channel::end_misfit(const Transfer& transfer, uint64_t message_bytes, uint64_t capacity) {
  end(transfer, Outcome::kFailed,
      absl::StrFormat("the message has %d bytes, the receiver's buffer %d", message_bytes, capacity));
}

void Channel::to_ring(uint64_t position, const std::byte* from, size_t bytes) {
  const size_t at = position % ring_bytes_;
  const size_t first = std::min(bytes, ring_bytes_ - at);
  std::memcpy(ring_ + at, from, first);
  std::memcpy(ring_, from + first, bytes - first);
}

void Channel::from_ring(uint64_t position, std::byte* to, size_t bytes) const {
  const size_t at = position % ring_bytes_;
  const size_t first = std::min(bytes, ring_bytes_ - at);
  std::memcpy(to, ring_ + at, first);
  std::memcpy(to + first, ring_, bytes - first);
}

// ---- the sending end

Channel::Change SendChannel::move(const std::atomic<uint32_t>&) {
  const bool offered = write_offers();
  const bool granted = read_grants();
  const bool moved = bytes_ != nullptr ? end_moved() : write_bytes();
  return change_of(offered || granted, moved);
}

bool SendChannel::write_offers() {
  auto& written = pair_.sender.offers_written;
  bool any = false;
  while (!waiting_.empty()) {
    const uint64_t number = written.load(std::memory_order_relaxed);
    if (number - pair_.receiver.offers_read.load(kSeqCst) >= kPendingOffers) {
      break;
    }
    const Transfer& next = waiting_.front();
    pair_.offers[number % kPendingOffers] = {next.context, next.bytes, next.tag, 0};
    offered_.emplace(number, std::move(waiting_.front()));
    waiting_.pop_front();
    written.store(number + 1, kSeqCst);
    any = true;
  }
  return any;
}

bool SendChannel::read_grants() {
  auto& read = pair_.sender.grants_read;
  bool any = false;
  for (uint64_t number = read.load(std::memory_order_relaxed); number < pair_.receiver.grants_written.load(kSeqCst);
       ++number) {
    const Grant grant = pair_.grants[number % kPendingOffers];
    read.store(number + 1, kSeqCst);
    any = true;
    auto offer = offered_.extract(grant.offer);
    if (offer.empty()) {
      give_up();  // the peer grants what nobody offered: its memory is damaged
      return true;
    }
    Transfer& transfer = offer.mapped();
    if (grant.capacity < transfer.bytes) {
      end_misfit(transfer, transfer.bytes, grant.capacity);
    } else if (transfer.bytes == 0) {
      end(transfer, Outcome::kDone);
    } else {
      if (bytes_ != nullptr) {
        bytes_->add({transfer.data, transfer.bytes});
      }
      granted_.push_back(std::move(transfer));
    }
  }
  return any;
}

bool SendChannel::write_bytes() {
  auto& written = pair_.sender.bytes_written;
  bool any = false;
  while (!granted_.empty()) {
    const uint64_t position = written.load(std::memory_order_relaxed);
    const size_t used = position - pair_.receiver.bytes_read.load(kSeqCst);
    if (used > ring_bytes_) {
      give_up();
      return true;
    }
    const Transfer& transfer = granted_.front();
    const size_t n = std::min({piece_bytes(), ring_bytes_ - used, transfer.bytes - sent_});
    if (n == 0) {
      break;
    }
    to_ring(position, transfer.data + sent_, n);
    written.store(position + n, kSeqCst);
    sent_ += n;
    any = true;
    if (sent_ == transfer.bytes) {
      end(transfer, Outcome::kDone);
      granted_.pop_front();
      sent_ = 0;
    } else {
      break;  // tell the peer about this piece, and look after the others
    }
  }
  return any;
}

bool SendChannel::end_moved() {
  const uint64_t moved = granted_.empty() ? 0 : bytes_->moved();
  bool any = false;
  while (!granted_.empty() && moved - over_ >= granted_.front().bytes) {
    over_ += granted_.front().bytes;
    end(granted_.front(), Outcome::kDone);
    granted_.pop_front();
    any = true;
  }
  return any;
}

int64_t SendChannel::next_deadline_ns() const {
  int64_t next = kNoDeadline;
  for (const Transfer& transfer : waiting_) {
    next = std::min(next, transfer.deadline_ns);
  }
  for (const auto& [number, transfer] : offered_) {
    next = std::min(next, transfer.deadline_ns);
  }
  for (const Transfer& transfer : granted_) {
    next = std::min(next, transfer.deadline_ns);
  }
  return next;
}

bool SendChannel::end_expired(int64_t now_ns) {
  std::erase_if(waiting_, [&](const Transfer& transfer) {
    const bool over = expired(transfer, now_ns);
    if (over) {
      end(transfer, Outcome::kFailed,
          absl::StrCat("the receiver took no message within ", seconds(transfer.timeout_ns)));
    }
    return over;
  });
  bool in_step = true;
  std::erase_if(offered_, [&](const auto& entry) {
    const Transfer& transfer = entry.second;
    const bool over = expired(transfer, now_ns);
    if (over) {
      end(transfer, Outcome::kFailed, absl::StrCat("no receive was posted within ", seconds(transfer.timeout_ns)));
      in_step = false;
    }
    return over;
  });
  if (std::any_of(granted_.begin(), granted_.end(), [&](const Transfer& each) { return expired(each, now_ns); })) {
    stop_bytes();
  }
  std::erase_if(granted_, [&](const Transfer& transfer) {
    const bool over = expired(transfer, now_ns);
    if (over) {
      end(transfer, Outcome::kFailed,
          absl::StrCat("the receiver stopped taking bytes; waited ", seconds(transfer.timeout_ns)));
      in_step = false;
    }
    return over;
  });
  return in_step;
}

void SendChannel::end_all(Outcome outcome, const std::string& why) {
  stop_bytes();
  for (const Transfer& transfer : granted_) {
    end(transfer, outcome, why);
  }
  for (const auto& [number, transfer] : offered_) {
    end(transfer, outcome, why);
  }
  for (const Transfer& transfer : waiting_) {
    end(transfer, outcome, why);
  }
  granted_.clear();
  offered_.clear();
  waiting_.clear();
}

// ---- the receiving end

void ReceiveChannel::add(Transfer transfer) {
  const auto key = std::pair(transfer.context, transfer.tag);
  Queues& queues = queues_[key];
  if (queues.offers.empty()) {
    queues.receives.push_back(std::move(transfer));
    ++posted_;
    return;
  }
  matched_.push_back({queues.offers.front(), std::move(transfer)});
  queues.offers.pop_front();
  if (queues.offers.empty()) {
    queues_.erase(key);
  }
}

bool ReceiveChannel::take_offered(Transfer& transfer) {
  untold_ = read_offers() || untold_;
  const auto it = queues_.find({transfer.context, transfer.tag});
  if (it == queues_.end() || it->second.offers.empty()) {
    return false;
  }
  transfer.came_from(peer_);
  add(std::move(transfer));
  return true;
}

Channel::Change ReceiveChannel::move(const std::atomic<uint32_t>& interrupted) {
  const bool offers = read_offers() || untold_;
  untold_ = false;
  const bool grants = write_grants();
  const bool moved = bytes_ != nullptr ? end_moved(interrupted) : read_bytes(interrupted);
  return change_of(offers || grants, moved);
}

bool ReceiveChannel::read_offers() {
  auto& read = pair_.receiver.offers_read;
  bool any = false;
  for (uint64_t number = read.load(std::memory_order_relaxed); number < pair_.sender.offers_written.load(kSeqCst);
       ++number) {
    const Offer offer = pair_.offers[number % kPendingOffers];
    read.store(number + 1, kSeqCst);
    any = true;
    const auto key = std::pair(offer.context, offer.tag);
    Queues& queues = queues_[key];
    const Known known{number, offer.bytes};
    const uint64_t named = queues.receives.empty() ? std::numeric_limits<uint64_t>::max() : queues.receives[0].order;
    if (std::optional<Transfer> taker = any_.take(key, peer_, named); taker.has_value()) {
      matched_.push_back({known, *std::move(taker)});
      if (queues.receives.empty() && queues.offers.empty()) {
        queues_.erase(key);
      }
      continue;
    }
    if (queues.receives.empty()) {
      queues.offers.push_back(known);
      continue;
    }
    matched_.push_back({known, std::move(queues.receives.front())});
    queues.receives.pop_front();
    --posted_;
    if (queues.receives.empty()) {
      queues_.erase(key);
    }
  }
  return any;
}

bool ReceiveChannel::write_grants() {
  auto& written = pair_.receiver.grants_written;
  bool any = false;
  while (!matched_.empty()) {
    const uint64_t number = written.load(std::memory_order_relaxed);
    if (number - pair_.sender.grants_read.load(kSeqCst) >= kPendingOffers) {
      break;
    }
    Match match = std::move(matched_.front());
    matched_.pop_front();
    const Transfer& receive = match.receive;
    if (bytes_ != nullptr && receive.bytes >= match.offer.bytes) {
      bytes_->add({receive.data, match.offer.bytes});
    }
    pair_.grants[number % kPendingOffers] = {match.offer.number, receive.bytes};
    written.store(number + 1, kSeqCst);
    any = true;
    if (receive.bytes < match.offer.bytes) {
      end_misfit(receive, match.offer.bytes, receive.bytes);
    } else if (match.offer.bytes == 0) {
      end(receive, Outcome::kDone);
    } else {
      incoming_.push_back(std::move(match));
    }
  }
  return any;
}

bool ReceiveChannel::read_bytes(const std::atomic<uint32_t>& interrupted) {
  auto& read = pair_.receiver.bytes_read;
  bool any = false;
  while (!incoming_.empty()) {
    const uint64_t position = read.load(std::memory_order_relaxed);
    const size_t available = pair_.sender.bytes_written.load(kSeqCst) - position;
    if (available > ring_bytes_) {
      give_up();
      return true;
    }
    const Match& match = incoming_.front();
    const size_t n = std::min({piece_bytes(), available, match.offer.bytes - got_});
    if (n == 0) {
      break;
    }
    from_ring(position, match.receive.data + got_, n);
    if (interrupted.load(kSeqCst) != 0) {
      return true;  // the sender may already be reusing its arena: what we copied may be torn
    }
    read.store(position + n, kSeqCst);
    got_ += n;
    any = true;
    if (got_ == match.offer.bytes) {
      end(match.receive, Outcome::kDone);
      incoming_.pop_front();
      got_ = 0;
    } else {
      break;
    }
  }
  return any;
}

bool ReceiveChannel::end_moved(const std::atomic<uint32_t>& interrupted) {
  const uint64_t moved = incoming_.empty() ? 0 : bytes_->moved();
  bool any = false;
  while (!incoming_.empty() && moved - over_ >= incoming_.front().offer.bytes) {
    if (interrupted.load(kSeqCst) != 0) {
      return true;  // as with a ring: once interrupted, nothing arrives
    }
    over_ += incoming_.front().offer.bytes;
    end(incoming_.front().receive, Outcome::kDone);
    incoming_.pop_front();
    any = true;
  }
  return any;
}

int64_t ReceiveChannel::next_deadline_ns() const {
  int64_t next = kNoDeadline;
  for (const auto& [key, queues] : queues_) {
    for (const Transfer& transfer : queues.receives) {
      next = std::min(next, transfer.deadline_ns);
    }
  }
  for (const Match& match : matched_) {
    next = std::min(next, match.receive.deadline_ns);
  }
  for (const Match& match : incoming_) {
    next = std::min(next, match.receive.deadline_ns);
  }
  return next;
}

bool ReceiveChannel::end_expired(int64_t now_ns) {
  for (auto& [key, queues] : queues_) {
    posted_ -= std::erase_if(queues.receives, [&](const Transfer& transfer) {
      const bool over = expired(transfer, now_ns);
      if (over) {
        end(transfer, Outcome::kFailed, absl::StrCat("nothing arrived within ", seconds(transfer.timeout_ns)));
      }
      return over;
    });
  }
  bool in_step = true;
  if (std::any_of(incoming_.begin(), incoming_.end(),
                  [&](const Match& match) { return expired(match.receive, now_ns); })) {
    stop_bytes();
  }
  for (auto* matches : {&matched_, &incoming_}) {
    std::erase_if(*matches, [&](const Match& match) {
      const bool over = expired(match.receive, now_ns);
      if (over) {
        end(match.receive, Outcome::kFailed,
            absl::StrCat("the sender stopped in the middle; waited ", seconds(match.receive.timeout_ns)));
        in_step = false;
      }
      return over;
    });
  }
  return in_step;
}

void ReceiveChannel::end_all(Outcome outcome, const std::string& why) {
  stop_bytes();
  for (auto* matches : {&incoming_, &matched_}) {
    for (const Match& match : *matches) {
      end(match.receive, outcome, why);
    }
    matches->clear();
  }
  for (const auto& [key, queues] : queues_) {
    for (const Transfer& transfer : queues.receives) {
      end(transfer, outcome, why);
    }
  }
  queues_.clear();
  posted_ = 0;
}

}  // namespace keepstep::comm
