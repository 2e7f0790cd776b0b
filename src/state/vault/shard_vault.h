// One rank's shard in memory that outlives its process: the two newest versions of it, each whole or not there. Or, in
// the same memory, a parity block of several ranks' shards (parity_vault.h).
//
// The memory is a memfd of the node's agent (design/sharded.md). One process at a time writes; the agent, and the
// process that takes over the shard, read. A version is written in three steps: begin() removes the older of the two,
// then bytes and text are written, then finish() makes the version whole. A writer that dies in between leaves no half
// version.
//
// Checksums: one XXH3 over the checksums of the chunks (kVaultChunk bytes each), so that a copy from tensors, which
// yields the checksum of each chunk, needs no second pass; and one of the text.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/status.h"
#include "brain/copies/parity_rebuild.h"
#include "brain/types.h"
#include "state/tensor_space.h"

namespace keepstep::state {

inline constexpr size_t kVaultChunk = size_t{1} << 20;

// What identifies a version, besides its bytes.
struct VaultSeal {
  brain::Version version = 0;
  uint64_t text_bytes = 0;
  uint64_t data_checksum = 0;
  uint64_t text_checksum = 0;
  bool operator==(const VaultSeal&) const = default;
};

// The result of checking a version while another process may write.
enum class VaultCheck { kGood, kCorrupt, kOverwritten, kGivenUp };

class ShardVault {
 public:
  // Memory for shards of `data_bytes` with at most `text_bytes` of text; owned by the agent, zeroed.
  static uint64_t memory_bytes(uint64_t data_bytes, uint64_t text_bytes);
  static void initialize(std::byte* memory, brain::Rank rank, uint64_t data_bytes, uint64_t text_bytes);
  // The same for a parity block that is_possible().
  static void initialize(std::byte* memory, const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_bytes);
  // A view; the memory must outlive it. INVALID_ARGUMENT if it is not a vault, or smaller than its header says.
  static StatusOr<ShardVault> open(std::byte* memory, uint64_t bytes);

  brain::Rank rank() const;  // of a parity block: its first member
  std::optional<brain::ParityBlock> parity() const;
  uint64_t data_bytes() const;  // of each version
  uint64_t text_room() const;

  bool has(brain::Version version) const;
  std::vector<brain::Version> versions() const;
  std::optional<VaultSeal> seal_of(brain::Version version) const;
  int64_t whole_since_ns(brain::Version version) const;  // monotonic; only if has(version)

  // ---- writing ----
  // Opens a slot for `version`: what it held (that version, or the older one) is gone. Call before data() and the
  // functions below.
  void begin(brain::Version version);
  std::span<std::byte> data(brain::Version version);
  // Writes the text. RESOURCE_EXHAUSTED if there is not enough room for it.
  Status put_text(brain::Version version, std::string_view text);
  // Where to write text that arrives from elsewhere.
  std::span<std::byte> text_slot(brain::Version version);
  void finish(const VaultSeal& seal);
  // Writes a whole version, from `tensors` (data_bytes() in total). Asks `give_up` every chunk; returns false if it
  // gave up.
  StatusOr<bool> write(brain::Version version, const TensorSpace& tensors, DeviceCopy& copy, std::string_view text,
                       const std::function<bool()>& give_up);
  // Drops versions after `version`: they belong to a history that did not happen.
  void drop_beyond(brain::Version version);

  // ---- reading ----
  // DATA_LOSS if bytes or text are not what was written; NOT_FOUND if the version is not there.
  Status verify(brain::Version version) const;
  StatusOr<std::string> text(brain::Version version) const;
  // Like verify(), but safe while another process writes. Asks `give_up` every chunk.
  VaultCheck check(brain::Version version, const std::function<bool()>& give_up) const;
  // Copies into `tensors` and verifies the bytes there. Errors like verify().
  Status read(brain::Version version, const TensorSpace& tensors, DeviceCopy& copy) const;

 private:
  struct Header;
  struct Slot;
  ShardVault(std::byte* memory) : memory_(memory) {}
  Header& header() const;
  Slot* find(brain::Version version) const;
  Slot* find_whole(brain::Version version) const;
  Slot& slot(brain::Version version) const;
  std::byte* text_memory(const Slot& of) const;
  std::byte* data_memory(const Slot& of) const;
  StatusOr<const Slot*> whole(brain::Version version) const;
  std::string what() const;  // "the shard of rank 3"

  std::byte* memory_;
};

// The checksum that a seal has, for data that arrives chunk by chunk (kVaultChunk bytes each, except the last).
class VaultChecksum {
 public:
  void add(std::span<const std::byte> chunk) { add(checksum(chunk.data(), chunk.size())); }
  void add(uint64_t checksum_of_chunk) { of_chunks_.push_back(checksum_of_chunk); }
  uint64_t whole() const { return checksum(of_chunks_.data(), of_chunks_.size() * sizeof(uint64_t)); }

 private:
  std::vector<uint64_t> of_chunks_;
};
uint64_t vault_checksum(std::span<const std::byte> data);

}  // namespace keepstep::state
