// Reed-Solomon code over blocks of memory: k data blocks, m parity blocks, any k of the k + m give all the others back.
//
// Systematic, over GF(2^8), its parity rows a Cauchy matrix (every square part of which can be inverted): each lost
// combination of up to m blocks can be rebuilt. The arithmetic is ISA-L's. Which ranks form a group is decided by
// brain/copies/parity_placement.h; a group of fewer members than k has a code of its own.
//
// Blocks need not be equally long: a data block counts as filled up with zeros to the longest one, which is how long
// each parity block is. Nothing is copied or padded for that: where a block has ended, the others are coded without it.
// The code works byte by byte: the same range of all blocks can be coded by itself, by another thread too.
//
// A ReedSolomon never changes after create(); its functions may be called by several threads at once. Tables for
// rebuilding are kept for the 32 combinations of lost and used blocks that were asked for last, so that of a long
// rebuild done in parts only the first part inverts a matrix.
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
  // A block to be rebuilt: 0 to k-1 are data, k to k+m-1 parity. `into` has the length that the block had.
  struct Wanted {
    uint32_t block = 0;
    Block into;
  };

  // INVALID_ARGUMENT unless there is at least one block of each kind, and at most kMaxCodeBlocks.
  static StatusOr<ReedSolomon> create(uint32_t data, uint32_t parity);
  ReedSolomon(ReedSolomon&&) noexcept;
  ReedSolomon& operator=(ReedSolomon&&) noexcept;
  ~ReedSolomon();

  uint32_t data() const;
  uint32_t parity() const;

  // Fills `parity`, m blocks that do not overlap the k of `data`. `sums`: gets the XXH3 of all k + m blocks, taken on
  // the way; or empty. INVALID_ARGUMENT for wrong numbers of blocks, and for a parity block not as long as the longest
  // data block, naming it.
  Status encode(std::span<const ConstBlock> data, std::span<const Block> parity, std::span<uint64_t> sums = {}) const;

  // Rebuilds `wanted` from any k of the others. `blocks`: k + m of them, nothing for one that is lost; a wanted one is
  // never read. `sums`: what encode() gave, or empty. With it every block that is read is checked, one that is corrupt
  // counts as lost (the others make up for it while they can), and so is what was rebuilt.
  // Gives the corrupt ones that were found; not all there may be, for only k blocks are read.
  // DATA_LOSS when fewer than k sound blocks are left, naming the lost and the corrupt ones, and when a rebuilt block
  // has not its checksum; INVALID_ARGUMENT for wrong numbers or lengths. After an error `wanted` holds anything.
  StatusOr<std::vector<uint32_t>> rebuild(std::span<const std::optional<ConstBlock>> blocks,
                                          std::span<const Wanted> wanted, std::span<const uint64_t> sums = {}) const;

  // Combinations that tables are kept of; for tests.
  size_t cached_combinations() const;

 private:
  struct Impl;
  explicit ReedSolomon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::state
