#include "rank/hydrate/remote_peer.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using comm::Outcome;

RemotePeer::RemotePeer(const std::shared_ptr<comm::Communicator>& comm, comm::Rank source)
    : comm_(*comm), alive_(comm), source_(source), slots_(std::make_unique<std::array<Slot, kSlots>>()) {}

RemotePeer::~RemotePeer() {
  const std::shared_ptr<comm::Communicator> comm = alive_.lock();
  if (comm == nullptr) {
    return;  // it completed all operations before it was destroyed
  }
  for (const Slot& slot : *slots_) {
    for (const comm::OpId op : {slot.sent, slot.head_came, slot.bytes_came}) {
      if (op != 0 && comm->test(op).outcome == Outcome::kPending) {
        (void)slots_.release();  // NOLINT(bugprone-unused-return-value): the communicator may still write there
        return;
      }
    }
  }
}

void RemotePeer::send(Slot& slot) {
  slot.sent = comm_.send(comm::kWorld, &slot.request, sizeof(slot.request), source_, kTagHydrationRequest);
}

void RemotePeer::ask(state::RemoteRequest request) {
  KEEPSTEP_CHECK(asked_ - taken_ < kSlots - 1, "more requests out than there is room for answers");
  request.number = ++asked_;
  Slot& slot = (*slots_)[request.number % kSlots];
  slot.request = request;
  if (slot.bytes == nullptr) {
    slot.bytes = std::make_unique_for_overwrite<std::byte[]>(state::kSlotBytes);
  }
  slot.head_came = comm_.receive(comm::kWorld, &slot.head, sizeof(slot.head), source_, kTagHydrationAnswer);
  slot.bytes_came = comm_.receive(comm::kWorld, slot.bytes.get(), state::kSlotBytes, source_, kTagHydrationBytes);
  send(slot);
}

StatusOr<state::Peer::Answer> RemotePeer::answer(int64_t limit_ns) {
  KEEPSTEP_CHECK(asked_ != taken_, "nothing was asked");
  const uint64_t number = taken_ + 1;
  Slot& slot = (*slots_)[number % kSlots];
  const int64_t end_ns = monotonic_ns() + limit_ns;
  for (const comm::OpId op : {slot.head_came, slot.bytes_came}) {
    const comm::Completion completion = comm_.wait_for(op, std::max<int64_t>(end_ns - monotonic_ns(), 0));
    switch (completion.outcome) {
      case Outcome::kPending:
        return absl::DeadlineExceededError("no answer yet");
      case Outcome::kInterrupted:
        return absl::AbortedError("the generation was interrupted");
      case Outcome::kFailed:
        return absl::UnavailableError(completion.error);
      case Outcome::kDone:
        break;
    }
  }
  if (slot.head.number != number) {
    return absl::UnavailableError(absl::StrFormat("answered request %d with number %d", number, slot.head.number));
  }
  return Answer{slot.head, slot.bytes.get()};
}

void RemotePeer::done() { forget((*slots_)[++taken_ % kSlots]); }

void RemotePeer::forget(Slot& slot) {
  // The source has the request, since its answer is here; the send's completion may still be on its way to us.
  comm_.wait(slot.sent);
  for (comm::OpId* op : {&slot.sent, &slot.head_came, &slot.bytes_came}) {
    comm_.forget(*op);
    *op = 0;
  }
}

comm::OpId RemotePeer::leave() {
  Slot& slot = (*slots_)[(asked_ + 1) % kSlots];
  slot.request = {.number = ++asked_, .kind = static_cast<uint32_t>(state::RemoteKind::kBye)};
  send(slot);
  return slot.sent;
}

}  // namespace keepstep::rank
