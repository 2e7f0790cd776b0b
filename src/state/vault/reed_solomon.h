// Reed-Solomon code over blocks of memory: k data blocks, m parity blocks; any k of the k + m recover all the others.
//
// Systematic, over GF(2^8), its parity rows a Cauchy matrix (every square submatrix is invertible): any combination of
// up to m lost blocks can be rebuilt. The arithmetic is ISA-L's. brain/copies/parity_placement.h decides which ranks
// form a group; a group of fewer members than k has a code of its own.
//
// Blocks need not be equally long: a data block is treated as padded with zeros to the longest one, which is the length
// of each parity block. Nothing is copied or padded for that: where a block has ended, the others are coded without it.
// The code works byte by byte: the same range of all blocks can be coded separately, also by another thread.
//
// A ReedSolomon never changes after create(); several threads may call its functions at once. Tables for rebuilding are
// cached for the 32 most recently requested combinations of lost and used blocks, so in a long rebuild done in parts
// only the first part inverts a matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"

namespace keepstep::state {

inline constexpr uint32_t kMaxCodeBlocks = 255;  // k + m

class ReedSolomon {
 public:
  using Block = std::span<std::byte>;
  using ConstBlock = std::span<const std::byte>;
  // A block to rebuild: 0 to k-1 are data, k to k+m-1 parity. `into` has the length that the block had.
  struct Wanted {
    uint32_t block = 0;
    Block into;
  };

  // INVALID_ARGUMENT unless there is at least one block of each kind, and at most kMaxCodeBlocks in all.
  static StatusOr<ReedSolomon> create(uint32_t data, uint32_t parity);
  ReedSolomon(ReedSolomon&&) noexcept;
  ReedSolomon& operator=(ReedSolomon&&) noexcept;
  ~ReedSolomon();

  uint32_t data() const;
  uint32_t parity() const;

  // Fills `parity`, m blocks that do not overlap the k of `data`. `sums`: receives the XXH3 of all k + m blocks,
  // computed in the same pass; or empty. INVALID_ARGUMENT for wrong numbers of blocks, and for a parity block not as
  // long as the longest data block, naming it.
  Status encode(std::span<const ConstBlock> data, std::span<const Block> parity, std::span<uint64_t> sums = {}) const;

  // Rebuilds `wanted` from any k of the others. `blocks`: k + m of them, std::nullopt for each lost one; a wanted one
  // is never read. `sums`: what encode() returned, or empty. If given, every block that is read is verified, and so is
  // every rebuilt one; a corrupt block is treated as lost (the others make up for it while they can). Returns the
  // corrupt blocks that were found; there may be more, because only k blocks are read. DATA_LOSS if fewer than k sound
  // blocks are left, naming the lost and the corrupt ones, and if a rebuilt block does not have its checksum;
  // INVALID_ARGUMENT for wrong numbers or lengths. After an error the contents of `wanted` are undefined.
  StatusOr<std::vector<uint32_t>> rebuild(std::span<const std::optional<ConstBlock>> blocks,
                                          std::span<const Wanted> wanted, std::span<const uint64_t> sums = {}) const;

  // The number of combinations with cached tables; for tests.
  size_t cached_combinations() const;

 private:
  struct Impl;
  explicit ReedSolomon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::state
