#include "state/remote_link.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace keepstep::state {
namespace {

// The text of a refusal; empty if the answer is not one.
std::string refusal_in(const Peer::Answer& answer) {
  if (answer.head.code == static_cast<uint32_t>(ReplyCode::kOk)) {
    return {};
  }
  const auto length = std::min<uint64_t>(answer.head.bytes, kMaxRefusalBytes);
  return length == 0 ? "refused" : std::string(reinterpret_cast<const char*>(answer.bytes), length);
}

}  // namespace

StatusOr<bool> RemoteLink::look(brain::Identity identity) {
  if (!peer_.lost.empty()) {
    return absl::UnavailableError(peer_.lost);
  }
  identity_ = identity;
  if (!peer_.found.has_value()) {
    if (!peer_.looking) {
      peer_.ask({.identity = pack(identity), .kind = static_cast<uint32_t>(RemoteKind::kLook)});
      peer_.looking = true;
    }
    const StatusOr<Peer::Answer> answer = peer_.answer(0);
    if (absl::IsDeadlineExceeded(answer.status())) {
      return false;  // a source that has published nothing does not listen yet
    }
    if (!answer.ok()) {
      return absl::IsAborted(answer.status()) ? answer.status() : lose(std::string(answer.status().message()));
    }
    const RemoteAnswer head = answer->head;
    const std::string refusal = refusal_in(*answer);
    peer_.done();
    peer_.looking = false;
    if (head.layout != kRemoteLayoutVersion) {
      return lose(absl::StrFormat("speaks layout %#x, this worker %#x: another version of keepstep", head.layout,
                                  kRemoteLayoutVersion));
    }
    if (!refusal.empty()) {
      return lose(refusal);
    }
    peer_.found = Published{1, head.version, head.manifest_bytes, head.entries, head.total_bytes, head.sizes_checksum};
  }
  published_ = *peer_.found;
  return true;
}

void RemoteLink::nap_until_published() {
  if (peer_.looking) {
    (void)peer_.answer(kNapNs);  // look() gets the same answer again
  }
}

Status RemoteLink::take_channel() {
  if (is_interrupted()) {
    return absl::AbortedError("the generation was interrupted");
  }
  return peer_.lost.empty() ? absl::OkStatus() : absl::UnavailableError(peer_.lost);
}

void RemoteLink::ask(const Request& request, brain::Version version) {
  KEEPSTEP_CHECK(can_ask() && peer_.found.has_value(), "too many requests out, or one before look()");
  peer_.ask({.identity = pack(identity_),
             .version = version,
             .offset = request.offset,
             .bytes = request.bytes,
             .kind = static_cast<uint32_t>(request.kind)});
  outstanding_.push_back(request);
}

StatusOr<Peer::Answer> RemoteLink::wait_answer() {
  const int64_t start_ns = monotonic_ns();
  while (true) {
    if (is_interrupted()) {
      return absl::AbortedError("the generation was interrupted");
    }
    StatusOr<Peer::Answer> answer = peer_.answer(kNapNs);
    if (!absl::IsDeadlineExceeded(answer.status())) {
      return answer.ok() || absl::IsAborted(answer.status()) ? std::move(answer)
                                                             : lose(std::string(answer.status().message()));
    }
    if (monotonic_ns() - start_ns > silence_ns_) {
      peer_.silent = true;
      return lose(absl::StrFormat("did not answer for %d ms", silence_ns_ / 1'000'000));
    }
  }
}

StatusOr<Reply> RemoteLink::reply() {
  KEEPSTEP_CHECK(!outstanding_.empty(), "nothing was asked");
  if (!peer_.lost.empty()) {
    return absl::UnavailableError(peer_.lost);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Peer::Answer answer, wait_answer());
  const Request& asked = outstanding_.front();
  if (const std::string refusal = refusal_in(answer); !refusal.empty()) {
    return absl::UnavailableError(refusal);
  }
  if (answer.head.offset != asked.offset || answer.head.bytes != asked.bytes) {
    return absl::DataLossError("the reply is to another request");
  }
  return Reply{answer.bytes, answer.head.checksum};
}

void RemoteLink::done() {
  peer_.done();
  outstanding_.pop_front();
}

// Replies that a lost source still owes go into memory that the peer owns.
void RemoteLink::await_all() {
  while (!outstanding_.empty() && peer_.lost.empty() && wait_answer().ok()) {
    done();
  }
  outstanding_.clear();
}

Status RemoteLink::lose(std::string why) {
  peer_.lost = std::move(why);
  return absl::UnavailableError(peer_.lost);
}

}  // namespace keepstep::state
