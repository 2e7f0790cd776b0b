#include "state/shared_link.h"

#include "base/clock.h"
#include "base/futex.h"

namespace keepstep::state {
namespace {

constexpr int kSpins = 64;  // about a microsecond: a spinning thread occupies a core that its source may need

}  // namespace

StatusOr<bool> SharedLink::look(brain::Identity identity) {
  const Header& header = board_.header;
  const uint32_t edition = header.edition.load(std::memory_order_acquire);
  edition_looked_at_ = edition;
  if (!is_published(edition)) {
    return false;
  }
  Published found{edition,
                  header.version.load(std::memory_order_relaxed),
                  header.manifest_bytes.load(std::memory_order_relaxed),
                  header.entries.load(std::memory_order_relaxed),
                  header.total_bytes.load(std::memory_order_relaxed),
                  header.sizes_checksum.load(std::memory_order_relaxed)};
  const uint64_t at = header.identity.load(std::memory_order_relaxed);
  const uint32_t layout = header.layout_version.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (header.edition.load(std::memory_order_relaxed) != edition) {
    return false;  // it changed while we read it; look again
  }
  if (layout != kLayoutVersion) {
    return absl::UnavailableError(
        absl::StrFormat("speaks layout %#x, this worker %#x: another version of keepstep", layout, kLayoutVersion));
  }
  if (at > pack(identity)) {
    return absl::UnavailableError(absl::StrFormat("published generation %d of term %d already",
                                                  static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)));
  }
  if (at < pack(identity)) {
    return false;
  }
  identity_ = identity;
  published_ = found;
  return true;
}

void SharedLink::nap_until_published() { futex_wait(board_.header.edition, edition_looked_at_, kNapNs); }

Status SharedLink::check_still_there() const {
  if (is_interrupted()) {
    return absl::AbortedError("the generation was interrupted");
  }
  if (board_.header.edition.load(std::memory_order_acquire) != published_.edition) {
    // The agent interrupts workers one by one: the source may have been interrupted first.
    if (board_.header.interrupted.load(std::memory_order_relaxed) != 0) {
      return absl::AbortedError("the generation was interrupted");
    }
    return absl::UnavailableError("withdrew its state");
  }
  return absl::OkStatus();
}

Status SharedLink::take_channel() {
  uint32_t progress = 0;
  int64_t progress_ns = monotonic_ns();
  while (true) {
    const uint32_t given_back = board_.header.given_back.load(std::memory_order_seq_cst);
    const uint32_t end = relay_ ? kRelayChannel + 1 : kChannels;
    for (uint32_t c = relay_ ? kRelayChannel : 0; c < end; ++c) {
      uint64_t free = 0;
      if (board_.channels[c].owner.compare_exchange_strong(free, owner_word(), std::memory_order_acq_rel)) {
        channel_ = &board_.channels[c];
        channel_index_ = c;
        asked_ = taken_ = channel_->asked.load(std::memory_order_relaxed);
        silent_ = false;
        const Status there = check_still_there();
        if (!there.ok()) {
          drop_channel();
        }
        return there;
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(check_still_there());
    // Other targets have all channels. Waits as long as necessary, provided that the source answers them.
    uint32_t now = given_back;
    for (const Channel& channel : board_.channels) {
      now += channel.answered.load(std::memory_order_relaxed);
    }
    if (now != progress) {
      progress = now;
      progress_ns = monotonic_ns();
    } else if (monotonic_ns() - progress_ns > kSilenceNs) {
      return absl::UnavailableError(
          absl::StrFormat("had no free channel and answered nobody for %d ms", kSilenceNs / 1'000'000));
    }
    futex_wait(board_.header.given_back, given_back, kNapNs);
  }
}

void SharedLink::drop_channel() {
  if (channel_ == nullptr) {
    return;
  }
  // A channel with unanswered requests stays taken: the next publish() frees it.
  const bool answered = !silent_ && wait_answered(asked_).ok();
  uint64_t ours = owner_word();
  if (answered && channel_->owner.compare_exchange_strong(ours, 0, std::memory_order_acq_rel)) {
    board_.header.given_back.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(board_.header.given_back);
  }
  channel_ = nullptr;
}

void SharedLink::ask(const Request& request, brain::Version version) {
  KEEPSTEP_CHECK(can_ask(), "more requests out than slots");
  const uint32_t number = ++asked_;
  Slot& slot = channel_->slots[number % kSlots];
  slot.identity.store(pack(identity_), std::memory_order_relaxed);
  slot.version.store(version, std::memory_order_relaxed);
  slot.offset.store(request.offset, std::memory_order_relaxed);
  slot.bytes.store(request.bytes, std::memory_order_relaxed);
  slot.kind.store(static_cast<uint32_t>(request.kind), std::memory_order_relaxed);
  outstanding_[number % kSlots] = request;
  channel_->asked.store(number, std::memory_order_release);
  board_.header.bell.fetch_add(1, std::memory_order_seq_cst);
  if (board_.header.source_sleeps.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(board_.header.bell);
  }
}

Status SharedLink::wait_answered(uint32_t number) {
  const int64_t start_ns = monotonic_ns();
  for (int spins = 0;; ++spins) {
    const uint32_t answered = channel_->answered.load(std::memory_order_acquire);
    if (distance(answered, number) >= 0) {
      return absl::OkStatus();
    }
    if (spins < kSpins) {
      cpu_relax();
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(check_still_there());
    if (monotonic_ns() - start_ns > kSilenceNs) {
      silent_ = true;
      return absl::UnavailableError(absl::StrFormat("did not answer for %d ms", kSilenceNs / 1'000'000));
    }
    channel_->target_sleeps.store(1, std::memory_order_seq_cst);
    futex_wait(channel_->answered, answered, kNapNs);
    channel_->target_sleeps.store(0, std::memory_order_seq_cst);
  }
}

StatusOr<Reply> SharedLink::reply() {
  KEEPSTEP_CHECK(asked_ != taken_, "nothing was asked");
  const uint32_t number = taken_ + 1;
  KEEPSTEP_RETURN_IF_ERROR(wait_answered(number));
  const Slot& slot = channel_->slots[number % kSlots];
  const auto code = static_cast<ReplyCode>(slot.code.load(std::memory_order_relaxed));
  if (code == ReplyCode::kWrongIdentity) {
    return absl::UnavailableError("refused: it publishes another identity or version");
  }
  if (code != ReplyCode::kOk) {
    return absl::UnavailableError("refused the request as malformed");
  }
  const Request& asked = outstanding_[number % kSlots];
  if (slot.reply_offset.load(std::memory_order_relaxed) != asked.offset ||
      slot.reply_bytes.load(std::memory_order_relaxed) != asked.bytes) {
    return absl::DataLossError("the reply is to another request");
  }
  return Reply{board_.bytes[channel_index_][number % kSlots], slot.checksum.load(std::memory_order_relaxed)};
}

}  // namespace keepstep::state
