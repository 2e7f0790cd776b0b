// Parity blocks of ranks' shards in vaults, computed chunk by chunk as the shards' bytes arrive, and shards rebuilt
// from them. Reed-Solomon (reed_solomon.h); the caller supplies the bytes.
//
// A parity block's data is as long as its longest member's; shorter ones are treated as padded with zeros. Its text
// contains every member's MemberShard, and the members' texts as they are: any block of the group is enough to know
// what was lost and to check it after the rebuild. A chunk is kVaultChunk bytes; the last one of a shard may be
// shorter.
//
// Format of the text: the number of members (8 bytes), a MemberShard for each, then their texts in order. All in the
// machine's byte order: it stays in memory, and passes only between processes of one program.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "state/vault/reed_solomon.h"
#include "state/vault/shard_vault.h"

namespace keepstep::state {

// One version of a rank's shard.
struct MemberShard {
  VaultSeal seal;
  uint64_t data_bytes = 0;
  uint64_t text_room = 0;
};

// The size of chunk `chunk` of `data_bytes` bytes of data; 0 beyond its end.
uint64_t chunk_bytes(uint64_t data_bytes, uint64_t chunk);
uint64_t chunks_of(uint64_t data_bytes);

// The room that a vault needs for the parity of these members.
struct ParityRoom {
  uint64_t data_bytes = 0;
  uint64_t text_room = 0;
};
ParityRoom parity_room(std::span<const MemberShard> members);

// The code that `block` belongs to.
StatusOr<ReedSolomon> code_of(const brain::ParityBlock& block);

// Fills one version in a parity block's vault. It is whole only after finish(). `code` must outlive it.
class ParityMaker {
 public:
  // `members`: in the order of the block, all of one version. RESOURCE_EXHAUSTED if the vault has no room for their
  // texts; INVALID_ARGUMENT if it is not a vault for them.
  static StatusOr<ParityMaker> begin(ShardVault vault, const ReedSolomon& code, std::vector<MemberShard> members);

  // Where to write a member's text.
  std::span<std::byte> text_of(size_t member);
  uint64_t chunks() const;  // of the longest member
  // The next chunk of each member; may be shorter than others', or empty.
  Status add(std::span<const ReedSolomon::ConstBlock> chunks);
  // Call after all chunks and texts. Makes the version whole; false: the bytes do not match the members' seals, and the
  // version is not there.
  bool finish();

 private:
  ParityMaker(ShardVault vault, const ReedSolomon& code, std::vector<MemberShard> members);
  ShardVault vault_;
  const ReedSolomon* code_;
  std::vector<MemberShard> members_;
  std::vector<uint64_t> texts_at_;
  uint64_t text_bytes_ = 0;
  uint64_t next_ = 0;                        // chunk
  std::vector<std::vector<uint64_t>> sums_;  // of each member's chunks
  std::vector<uint64_t> parity_sums_;
};

// The text of a parity block.
class ParityText {
 public:
  // DATA_LOSS if it is not the text of `members` members.
  static StatusOr<ParityText> parse(std::string text, size_t members);
  const std::vector<MemberShard>& members() const { return members_; }
  std::string_view text_of(size_t member) const;

 private:
  std::string text_;
  std::vector<MemberShard> members_;
  std::vector<uint64_t> texts_at_;
};

// Rebuilds a member's shard, into a vault of its own, from as many other blocks of the group as it has members.
class ShardRebuild {
 public:
  // `lost`: which member. `blocks`: their numbers in the code. INVALID_ARGUMENT if the vault does not have the shard's
  // size, or these blocks are impossible; RESOURCE_EXHAUSTED if it has no room for the text.
  static StatusOr<ShardRebuild> begin(ShardVault vault, const ParityText& text, uint32_t lost,
                                      std::vector<uint32_t> blocks);

  uint64_t chunks() const;                                 // of the longest block
  uint64_t bytes_of(size_t source, uint64_t chunk) const;  // source: an index into `blocks`
  // The next chunk of each source, of bytes_of() bytes.
  Status add(std::span<const ReedSolomon::ConstBlock> chunks);
  // Makes the version whole if it is what the member had; otherwise DATA_LOSS, and the version is not there.
  Status finish();

 private:
  ShardRebuild(ShardVault vault, ReedSolomon code, std::vector<MemberShard> members, uint32_t lost,
               std::vector<uint32_t> blocks);
  ShardVault vault_;
  ReedSolomon code_;
  std::vector<MemberShard> members_;
  uint32_t lost_;
  std::vector<uint32_t> blocks_;
  uint64_t longest_;
  uint64_t next_ = 0;  // chunk
};

}  // namespace keepstep::state
