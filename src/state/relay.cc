#include "state/relay.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace keepstep::state {
namespace {

constexpr uint64_t kNothing = ~uint64_t{0};  // an offset that nobody asks for: "this is not an answer, ask again"

bool is_kind(uint32_t kind) {
  return kind >= static_cast<uint32_t>(Kind::kManifest) && kind <= static_cast<uint32_t>(Kind::kData);
}

}  // namespace

Relay::Answered Relay::refuse(const RemoteRequest& request, std::string why) {
  std::string& text = refusals_[refused_++ % refusals_.size()];
  text = std::move(why);
  text.resize(std::min(text.size(), kMaxRefusalBytes));
  return {{.number = request.number, .offset = request.offset, .bytes = text.size(), .code = kReplyRefused},
          std::as_bytes(std::span(text))};
}

Status Relay::look() {
  if (found_) {
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(found_, link_.look(identity_));
  return found_ ? absl::OkStatus() : absl::UnavailableError("publishes nothing");
}

Relay::Begun Relay::begun(const RemoteRequest& request) {
  if (link_.is_interrupted()) {
    return Answered{};  // never used: answer() reports it, and nothing more may be asked
  }
  const bool is_look = request.kind == static_cast<uint32_t>(RemoteKind::kLook);
  if (request.layout != kRemoteLayoutVersion) {
    return refuse(request, absl::StrFormat("speaks layout %#x, this worker %#x: another version of keepstep",
                                           kRemoteLayoutVersion, request.layout));
  }
  if (!is_look && (!is_kind(request.kind) || request.bytes > kSlotBytes / unit_of(request.kind))) {
    return refuse(request, "refused the request as malformed");
  }
  if (request.identity != pack(identity_)) {
    return refuse(request, "refused: it publishes another identity or version");
  }
  if (const Status found = look(); !found.ok()) {
    return refuse(request, std::string(found.message()));
  }
  if (is_look) {
    const Published& published = link_.published();
    return Answered{{.number = request.number,
                     .offset = request.offset,
                     .bytes = request.bytes,
                     .version = published.version,
                     .manifest_bytes = published.manifest_bytes,
                     .entries = published.entries,
                     .total_bytes = published.total_bytes,
                     .sizes_checksum = published.sizes_checksum},
                    {}};
  }
  if (!link_.has_channel()) {
    if (const Status taken = link_.take_channel(); !taken.ok()) {
      return refuse(request, std::string(taken.message()));
    }
  }
  link_.ask({static_cast<Kind>(request.kind), request.offset, request.bytes}, request.version);
  return request;
}

void Relay::begin(const RemoteRequest& request) {
  KEEPSTEP_CHECK(begun_.size() < kSlots, "more requests begun than there are slots");
  begun_.push_back(begun(request));
}

StatusOr<Relay::Answered> Relay::answer() {
  KEEPSTEP_CHECK(has_begun(), "nothing was begun");
  const Begun oldest = begun_.front();
  begun_.pop_front();
  if (link_.is_interrupted()) {
    return absl::AbortedError("the generation was interrupted");
  }
  if (const auto* known = std::get_if<Answered>(&oldest); known != nullptr) {
    return *known;
  }
  const RemoteRequest& request = std::get<RemoteRequest>(oldest);
  const StatusOr<Reply> reply = link_.reply();
  link_.done();
  if (absl::IsAborted(reply.status())) {
    return reply.status();
  }
  RemoteAnswer head{.number = request.number, .offset = request.offset, .bytes = request.bytes};
  if (absl::IsDataLoss(reply.status())) {
    head.offset = kNothing;
    return Answered{head, {}};
  }
  if (!reply.ok()) {
    return refuse(request, std::string(reply.status().message()));
  }
  head.checksum = reply->checksum;
  return Answered{head, {reply->bytes, request.bytes * unit_of(request.kind)}};
}

}  // namespace keepstep::state
