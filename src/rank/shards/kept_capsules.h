// The memory in which a keeper holds copies of other ranks' capsules (capsule_copies.h): two slots per rank, for even
// and odd versions. It outlives the keeper: the keeper's agent holds it too, and passes it to the process that takes
// over the keeper's rank.
//
// A slot is valid as a whole or not at all, whenever its writer dies. One writer; threads must not share it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::rank {

class KeptCapsules {
 public:
  KeptCapsules() = default;  // room for none

  // Allocates room for the capsules of `ranks` ranks, at most `max_bytes` each. RESOURCE_EXHAUSTED: no memory.
  static StatusOr<KeptCapsules> create(size_t ranks, size_t max_bytes);
  // Attaches a previous process's memory. INVALID_ARGUMENT: it is not such memory.
  static StatusOr<KeptCapsules> attach(Fd memory, size_t max_bytes);

  size_t room() const { return slots_ / 2; }  // ranks
  int fd() const { return memory_.fd(); }

  // Replaces that rank's version of the same parity, else takes a free slot. FAILED_PRECONDITION: no room.
  Status put(brain::Rank rank, brain::Version version, std::string_view capsule);
  std::optional<std::string> find(brain::Rank rank, brain::Version version) const;
  // Drops all copies but those of the ranks that `keep` accepts: other keepers have them now.
  template <typename Keep>
  void drop_unless(Keep keep) {
    for (size_t slot = 0; slot < slots_; ++slot) {
      if (!keep(head(slot).rank)) {
        head(slot).version_plus_1 = 0;
      }
    }
  }

 private:
  struct Head {
    std::atomic<uint64_t> version_plus_1;  // 0: the slot is empty
    uint64_t rank;
    uint64_t bytes;
    uint64_t reserved[5];
  };
  KeptCapsules(SharedMemory memory, size_t slots, size_t max_bytes)
      : memory_(std::move(memory)), slots_(slots), max_bytes_(max_bytes) {}
  static size_t stride(size_t max_bytes) { return sizeof(Head) + (max_bytes + 63) / 64 * 64; }
  std::byte* at(size_t slot) const { return memory_.data() + slot * stride(max_bytes_); }
  Head& head(size_t slot) const { return *reinterpret_cast<Head*>(at(slot)); }

  SharedMemory memory_;
  size_t slots_ = 0;
  size_t max_bytes_ = 0;
};

}  // namespace keepstep::rank
