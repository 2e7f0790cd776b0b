#include "rank/shards/capsules.h"

#include <cstdio>
#include <cstring>
#include <utility>

namespace keepstep::rank {

using brain::Version;

namespace {

std::optional<std::string> capsule_in(const std::byte* memory, Version version) {
  const CapsuleSlot& slot = reinterpret_cast<const WorkerPage*>(memory)->capsule[version % 2];
  if (slot.version_plus_1.load() != version + 1) {
    return std::nullopt;
  }
  const uint64_t bytes = slot.bytes.load();  // stored before the version
  if (bytes > kCapsuleBytes) {
    return std::nullopt;
  }
  return std::string(reinterpret_cast<const char*>(memory + WorkerLayout::capsule(version % 2)), bytes);
}

}  // namespace

Capsules::Capsules(AgentLine& agent, RankGeneration& generation) : agent_(agent), generation_(generation) {
  copies_.on_memory([this](int fd) { (void)agent_.send(messages::Kept{}, std::span<const int>(&fd, 1)); });
}

void Capsules::enter(Fd inherited) {
  const Assignment& assignment = generation_.assignment;
  wanted_ = false;
  if (assignment.resized || assignment.newcomer) {
    copies_.forget();  // from ranks of another world, or from a previous life
  }
  if (inherited.valid() && !assignment.resized) {
    if (StatusOr<KeptCapsules> kept = KeptCapsules::attach(std::move(inherited), kCapsuleBytes); kept.ok()) {
      copies_.inherit(*std::move(kept));
    } else {
      std::fprintf(stderr, "keepstep: worker %u cannot take over copies of capsules: %s\n", agent_.worker(),
                   std::string(kept.status().message()).c_str());
    }
  }
  copies_.enter(*generation_.communicator, generation_.self(), generation_.nodes);
}

Status Capsules::save(Version version, std::string_view bytes) {
  if (bytes.size() > kCapsuleBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the per-rank values that forward changes take %d bytes, %d is the most; protect large buffers "
                        "that forward does not change as state",
                        bytes.size(), kCapsuleBytes));
  }
  CapsuleSlot& slot = generation_.own_page().capsule[version % 2];
  slot.version_plus_1 = 0;
  std::memcpy(generation_.own + WorkerLayout::capsule(version % 2), bytes.data(), bytes.size());
  slot.bytes = bytes.size();
  slot.version_plus_1 = version + 1;
  return absl::OkStatus();
}

std::optional<std::string> Capsules::load(Version version) const { return capsule_in(generation_.own, version); }

void Capsules::clear() {
  for (CapsuleSlot& slot : generation_.own_page().capsule) {
    slot.version_plus_1 = 0;
  }
}

// The capsule of the lowest rank on this node that has one.
std::optional<std::string> Capsules::neighbours(Version version) const {
  for (const std::byte* member : generation_.members) {  // null: on another node
    std::optional<std::string> found = member == nullptr ? std::nullopt : capsule_in(member, version);
    if (found.has_value()) {
      return found;
    }
  }
  return std::nullopt;
}

Status Capsules::share() {
  const Version version = generation_.activation.version;
  const bool resized = generation_.assignment.resized;
  std::optional<std::string> own = wanted_ ? load(version) : std::nullopt;
  if (wanted_ && !own.has_value() && resized) {
    // A new rank starts with the result of another rank's forward passes.
    own = neighbours(version);
    if (own.has_value()) {
      KEEPSTEP_RETURN_IF_ERROR(save(version, *own));
    }
  }
  const StatusOr<std::optional<std::string>> got = copies_.share(version, wanted_, own, resized);
  KEEPSTEP_RETURN_IF_ERROR(generation_.passed_on(got.status()));
  return got->has_value() ? save(version, **got) : absl::OkStatus();
}

Status Capsules::copy(Version version) {
  const Status status = generation_.passed_on(copies_.copy(version, load(version).value_or(std::string())));
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

}  // namespace keepstep::rank
