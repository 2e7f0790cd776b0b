#include "comm/tcp/pair_mirror.h"

namespace keepstep::comm::tcp {
namespace {

constexpr auto kSeqCst = std::memory_order_seq_cst;  // as in channel.cc: a counter may be what somebody sleeps on

void end_pair(PairBlock& pair, GivenUp who) {
  uint64_t nobody = 0;
  pair.given_up_by.compare_exchange_strong(nobody, who.word(), kSeqCst);
}

}  // namespace

std::optional<PairMirror::Telling> PairMirror::next() {
  PairBlock& out = outgoing();
  PairBlock& in = incoming();
  for (int direction = 0; direction < 2; ++direction) {
    const uint64_t by = (direction == 0 ? out : in).given_up_by.load(kSeqCst);
    if (by != 0 && !end_told_[direction]) {
      end_told_[direction] = true;
      return Telling{
          {.kind = FrameKind::kPairEnded, .part = GivenUp::from(by).by, .operation = static_cast<uint64_t>(direction)}};
    }
  }
  if (offers_told_ < out.sender.offers_written.load(kSeqCst)) {
    const Offer& offer = out.offers[offers_told_ % kPendingOffers];
    return Telling{{.kind = FrameKind::kOffer,
                    .part = offer.tag,
                    .context = offer.context,
                    .operation = offers_told_++,
                    .total = offer.bytes}};
  }
  if (grants_told_ < in.receiver.grants_written.load(kSeqCst)) {
    const Grant& grant = in.grants[grants_told_ % kPendingOffers];
    return Telling{
        {.kind = FrameKind::kGrant, .operation = grants_told_++, .offset = grant.offer, .total = grant.capacity}};
  }
  const uint64_t offers_read = in.receiver.offers_read.load(kSeqCst);
  const uint64_t grants_read = out.sender.grants_read.load(kSeqCst);
  if (offers_read != offers_read_told_ || grants_read != grants_read_told_) {
    offers_read_told_ = offers_read;
    grants_read_told_ = grants_read;
    return Telling{{.kind = FrameKind::kRead, .operation = offers_read, .total = grants_read}};
  }
  if (const auto piece = outgoing_bytes_.take(frame_bytes_); piece.has_value()) {
    return Telling{
        {.kind = FrameKind::kBytes, .bytes = static_cast<uint32_t>(piece->bytes.size()), .offset = piece->position},
        piece->bytes.data(),
        piece->ends_message};
  }
  return std::nullopt;
}

std::optional<PairMirror::Target> PairMirror::target(const Frame& frame) {
  if (const auto piece = incoming_bytes_.take_exactly(frame.offset, frame.bytes); piece.has_value()) {
    return Target{piece->bytes.data(), piece->ends_message};
  }
  return incoming_bytes_.cancelled() ? std::optional(Target{}) : std::nullopt;
}

bool PairMirror::apply_read(const Frame& frame) {
  PairBlock& out = outgoing();
  PairBlock& in = incoming();
  const auto grows = [](const std::atomic<uint64_t>& counter, uint64_t to, uint64_t most) {
    return to >= counter.load(std::memory_order_relaxed) && to <= most;
  };
  if (!grows(out.receiver.offers_read, frame.operation, offers_told_) ||
      !grows(in.sender.grants_read, frame.total, grants_told_)) {
    return false;
  }
  out.receiver.offers_read.store(frame.operation, kSeqCst);
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
      incoming_bytes_.add_moved(frame.bytes);
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
