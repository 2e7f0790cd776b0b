#include "comm/tcp/pair_mirror.h"

#include <algorithm>

namespace keepstep::comm::tcp {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;  // as in channel.cc: a counter may be what somebody sleeps on
constexpr size_t kMostBytesAtOnce = 128 << 10;       // so that offers and grants need not wait long behind them

void end_pair(PairBlock& pair, GivenUp who) {
  uint64_t nobody = 0;
  pair.given_up_by.compare_exchange_strong(nobody, who.word(), kSeqCst);
}

}  // namespace

PairMirror::PairMirror(Rank peer, size_t ring_bytes)
    : peer_(peer), ring_bytes_(ring_bytes), rings_(std::make_unique_for_overwrite<std::byte[]>(2 * ring_bytes)) {}

std::optional<PairMirror::Telling> PairMirror::next() {
  PairBlock& out = outgoing();
  PairBlock& in = incoming();
  for (int direction = 0; direction < 2; ++direction) {
    const uint64_t by = (direction == 0 ? out : in).given_up_by.load(kSeqCst);
    if (by != 0 && !end_told_[direction]) {
      end_told_[direction] = true;
      return Telling{
          {.kind = FrameKind::kPairEnded, .part = GivenUp::from(by).by, .operation = static_cast<uint64_t>(direction)},
          nullptr};
    }
  }
  if (offers_told_ < out.sender.offers_written.load(kSeqCst)) {
    const Offer& offer = out.offers[offers_told_ % kPendingOffers];
    return Telling{{.kind = FrameKind::kOffer,
                    .part = offer.tag,
                    .context = offer.context,
                    .operation = offers_told_++,
                    .total = offer.bytes},
                   nullptr};
  }
  if (grants_told_ < in.receiver.grants_written.load(kSeqCst)) {
    const Grant& grant = in.grants[grants_told_ % kPendingOffers];
    return Telling{
        {.kind = FrameKind::kGrant, .operation = grants_told_++, .offset = grant.offer, .total = grant.capacity},
        nullptr};
  }
  const uint64_t offers_read = in.receiver.offers_read.load(kSeqCst);
  const uint64_t bytes_read = in.receiver.bytes_read.load(kSeqCst);
  const uint64_t grants_read = out.sender.grants_read.load(kSeqCst);
  if (offers_read != offers_read_told_ || bytes_read != bytes_read_told_ || grants_read != grants_read_told_) {
    offers_read_told_ = offers_read;
    bytes_read_told_ = bytes_read;
    grants_read_told_ = grants_read;
    return Telling{{.kind = FrameKind::kRead, .operation = offers_read, .offset = bytes_read, .total = grants_read},
                   nullptr};
  }
  const uint64_t written = out.sender.bytes_written.load(kSeqCst);
  if (bytes_told_ < written) {
    const size_t at = bytes_told_ % ring_bytes_;
    const size_t n = std::min({written - bytes_told_, ring_bytes_ - at, kMostBytesAtOnce});
    const Telling telling{{.kind = FrameKind::kBytes, .bytes = static_cast<uint32_t>(n), .offset = bytes_told_},
                          outgoing_ring() + at};
    bytes_told_ += n;
    return telling;
  }
  return std::nullopt;
}

std::byte* PairMirror::place(const Frame& frame) {
  PairBlock& in = incoming();
  const uint64_t written = in.sender.bytes_written.load(std::memory_order_relaxed);
  const uint64_t used = written - in.receiver.bytes_read.load(kSeqCst);
  const size_t at = written % ring_bytes_;
  const bool fits = frame.offset == written && used <= ring_bytes_ && frame.bytes <= ring_bytes_ - used &&
                    frame.bytes <= ring_bytes_ - at;
  return fits ? incoming_ring() + at : nullptr;
}

bool PairMirror::apply_read(const Frame& frame) {
  PairBlock& out = outgoing();
  PairBlock& in = incoming();
  const auto grows = [](const std::atomic<uint64_t>& counter, uint64_t to, uint64_t most) {
    return to >= counter.load(std::memory_order_relaxed) && to <= most;
  };
  if (!grows(out.receiver.offers_read, frame.operation, offers_told_) ||
      !grows(out.receiver.bytes_read, frame.offset, bytes_told_) ||
      !grows(in.sender.grants_read, frame.total, grants_told_)) {
    return false;
  }
  out.receiver.offers_read.store(frame.operation, kSeqCst);
  out.receiver.bytes_read.store(frame.offset, kSeqCst);
  in.sender.grants_read.store(frame.total, kSeqCst);
  return true;
}

bool PairMirror::apply(const Frame& frame) {
  PairBlock& out = outgoing();
  PairBlock& in = incoming();
  switch (frame.kind) {
    case FrameKind::kOffer: {
      const uint64_t number = in.sender.offers_written.load(std::memory_order_relaxed);
      if (frame.operation != number || number - in.receiver.offers_read.load(kSeqCst) >= kPendingOffers) {
        return false;
      }
      in.offers[number % kPendingOffers] = {frame.context, frame.total, frame.part, 0};
      in.sender.offers_written.store(number + 1, kSeqCst);
      return true;
    }
    case FrameKind::kGrant: {
      const uint64_t number = out.receiver.grants_written.load(std::memory_order_relaxed);
      if (frame.operation != number || number - out.sender.grants_read.load(kSeqCst) >= kPendingOffers) {
        return false;
      }
      out.grants[number % kPendingOffers] = {frame.offset, frame.total};
      out.receiver.grants_written.store(number + 1, kSeqCst);
      return true;
    }
    case FrameKind::kBytes:
      in.sender.bytes_written.store(frame.offset + frame.bytes, kSeqCst);  // place() checked it
      return true;
    case FrameKind::kRead:
      return apply_read(frame);
    case FrameKind::kPairEnded:
      end_told_[1 - frame.operation] = true;  // what is outgoing there is incoming here
      end_pair(frame.operation == 0 ? in : out, {frame.part});
      return true;
    default:
      return false;
  }
}

void PairMirror::end(std::string why) {
  why_ended_ = std::move(why);
  end_pair(outgoing(), {peer_, true});
  end_pair(incoming(), {peer_, true});
  end_told_[0] = end_told_[1] = true;  // there is nobody to tell
}

}  // namespace keepstep::comm::tcp
