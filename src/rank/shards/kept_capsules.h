// The memory that a keeper has copies of other ranks' capsules in (capsule_copies.h): two slots a rank, for even and
// odd versions. It outlives the keeper: its agent holds it too, and hands it to the process that takes the keeper's
// rank.
//
// A slot is there as a whole or not at all, whenever its writer dies. One writer; threads must not share it.
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

  // Room for the capsules of `ranks` ranks, of at most `most_bytes` each. RESOURCE_EXHAUSTED: no memory.
  static StatusOr<KeptCapsules> create(size_t ranks, size_t most_bytes);
  // What a process before had. INVALID_ARGUMENT: this is no such memory.
  static StatusOr<KeptCapsules> attach(Fd memory, size_t most_bytes);

  size_t room() const { return slots_ / 2; }  // ranks
  int fd() const { return memory_.fd(); }

  // In place of that rank's version before the last, else in a slot that nobody's is in. FAILED_PRECONDITION: no room.
  Status put(brain::Rank rank, brain::Version version, std::string_view capsule);
  std::optional<std::string> find(brain::Rank rank, brain::Version version) const;
  // All but the copies of these: others keep them now.
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
    std::atomic<uint64_t> version_plus_1;  // 0: nothing is in it
    uint64_t rank;
    uint64_t bytes;
    uint64_t reserved[5];
  };
  KeptCapsules(SharedMemory memory, size_t slots, size_t most_bytes)
      : memory_(std::move(memory)), slots_(slots), most_bytes_(most_bytes) {}
  static size_t stride(size_t most_bytes) { return sizeof(Head) + (most_bytes + 63) / 64 * 64; }
  std::byte* at(size_t slot) const { return memory_.data() + slot * stride(most_bytes_); }
  Head& head(size_t slot) const { return *reinterpret_cast<Head*>(at(slot)); }

  SharedMemory memory_;
  size_t slots_ = 0;
  size_t most_bytes_ = 0;
};

}  // namespace keepstep::rank
