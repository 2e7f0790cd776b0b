#include "rank/shards/kept_capsules.h"

#include <cstring>

namespace keepstep::rank {

StatusOr<KeptCapsules> KeptCapsules::create(size_t ranks, size_t max_bytes) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::create("keepstep-kept-capsules", 2 * ranks * stride(max_bytes)));
  return KeptCapsules(std::move(memory), 2 * ranks, max_bytes);
}

StatusOr<KeptCapsules> KeptCapsules::attach(Fd memory, size_t max_bytes) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory mapped, SharedMemory::attach(std::move(memory), 2 * stride(max_bytes)));
  const size_t slots = mapped.size() / stride(max_bytes) / 2 * 2;
  return KeptCapsules(std::move(mapped), slots, max_bytes);
}

Status KeptCapsules::put(brain::Rank rank, brain::Version version, std::string_view capsule) {
  std::optional<size_t> chosen;
  for (size_t slot = version % 2; slot < slots_; slot += 2) {
    const bool taken = head(slot).version_plus_1.load() != 0;
    if (taken && head(slot).rank == rank) {
      chosen = slot;
      break;
    }
    if (!taken && !chosen.has_value()) {
      chosen = slot;
    }
  }
  if (!chosen.has_value() || capsule.size() > max_bytes_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "no room for a copy of the capsule of rank %d, of %d bytes: there is some for %d ranks, and %d bytes each",
        rank, capsule.size(), room(), max_bytes_));
  }
  Head& into = head(*chosen);
  into.version_plus_1 = 0;
  into.rank = rank;
  into.bytes = capsule.size();
  std::memcpy(at(*chosen) + sizeof(Head), capsule.data(), capsule.size());
  into.version_plus_1 = version + 1;
  return absl::OkStatus();
}

std::optional<std::string> KeptCapsules::find(brain::Rank rank, brain::Version version) const {
  for (size_t slot = version % 2; slot < slots_; slot += 2) {
    const Head& from = head(slot);
    if (from.version_plus_1.load() == version + 1 && from.rank == rank && from.bytes <= max_bytes_) {
      return std::string(reinterpret_cast<const char*>(at(slot) + sizeof(Head)), from.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace keepstep::rank
