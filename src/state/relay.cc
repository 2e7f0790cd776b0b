#include "state/relay.h"

#include <algorithm>
#include <utility>

namespace keepstep::state {
namespace {

constexpr uint64_t kNothing = ~uint64_t{0};  // an offset that nobody asks for: "this is no answer, ask again"

bool is_kind(uint32_t kind) {
  return kind >= static_cast<uint32_t>(Kind::kManifest) && kind <= static_cast<uint32_t>(Kind::kData);
}

}  // namespace

Relay::Answered Relay::refuse(const RemoteRequest& request, std::string why) {
  std::string& text = refusals_[refused_++ % kSlots];
  text = std::move(why);
  text.resize(std::min(text.size(), kMaxRefusalBytes));
  return {{.number = request.number, .offset = request.offset, .bytes = text.size(), .outcome = kOutcomeRefused},
          std::as_bytes(std::span(text))};
}

Status Relay::look() {
  if (found_) {
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(found_, link_.look(identity_));
  return found_ ? absl::OkStatus() : absl::UnavailableError("publishes nothing");
}

StatusOr<Reply> Relay::reply_to(const Request& request, brain::Version version) {
  if (!link_.has_channel()) {
    KEEPSTEP_RETURN_IF_ERROR(link_.take_channel());
  }
  link_.ask(request, version);
  StatusOr<Reply> reply = link_.reply();
  link_.done();
  return reply;
}

StatusOr<Relay::Answered> Relay::answer(const RemoteRequest& request) {
  const bool is_look = request.kind == static_cast<uint32_t>(RemoteKind::kLook);
  if (link_.is_interrupted()) {
    return absl::AbortedError("the generation was interrupted");
  }
  if (request.layout != kRemoteLayoutVersion) {
    return refuse(request, absl::StrFormat("speaks layout %#x, this worker %#x: another version of keepstep",
                                           kRemoteLayoutVersion, request.layout));
  }
  const uint64_t unit = unit_of(request.kind);
  if (!is_look && (!is_kind(request.kind) || request.bytes > kSlotBytes / unit)) {
    return refuse(request, "refused the request as malformed");
  }
  if (request.identity != pack(identity_)) {
    return refuse(request, "refused: it publishes another identity or version");
  }
  if (const Status found = look(); !found.ok()) {
    return refuse(request, std::string(found.message()));
  }
  RemoteAnswer head{.number = request.number, .offset = request.offset, .bytes = request.bytes};
  if (is_look) {
    const Published& published = link_.published();
    head.version = published.version;
    head.manifest_bytes = published.manifest_bytes;
    head.entries = published.entries;
    head.total_bytes = published.total_bytes;
    head.sizes_checksum = published.sizes_checksum;
    return Answered{head, {}};
  }
  const StatusOr<Reply> reply =
      reply_to({static_cast<Kind>(request.kind), request.offset, request.bytes}, request.version);
  if (absl::IsAborted(reply.status())) {
    return reply.status();
  }
  if (absl::IsDataLoss(reply.status())) {
    head.offset = kNothing;
    return Answered{head, {}};
  }
  if (!reply.ok()) {
    return refuse(request, std::string(reply.status().message()));
  }
  head.checksum = reply->checksum;
  return Answered{head, {reply->bytes, request.bytes * unit}};
}

}  // namespace keepstep::state
