// Decides which documents share a row of fixed length, so that few tokens are padding and no document is cut that fits.
//
// Best-fit decreasing (Johnson, 1974; for language models: Ding et al., Fewer Truncations Improve Language Modeling,
// 2024): documents from the longest to the shortest, each into the row with the least room that still fits it. The same
// input gives the same rows on every machine: ties go to the document that comes first, and to the row that was changed
// last. Pure; O(n log capacity).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/corpus/token_index.h"

namespace keepstep::data {

enum class TooLong : uint8_t {
  kCut = 0,       // into pieces that share one token: the last of one is the first of the next
  kTruncate = 1,  // only its first tokens are used
  kDrop = 2,
};

// A part of a document, as a range of tokens of the stream (TokenIndex).
struct PackPiece {
  uint64_t begin = 0;
  uint32_t count = 0;
  bool operator==(const PackPiece&) const = default;
};

struct PackPlan {
  std::vector<uint64_t> starts;   // where each row begins in `pieces`, and the end: rows + 1 of them
  std::vector<PackPiece> pieces;  // by row, and within a row in the order of the corpus
  uint64_t tokens = 0;            // of all pieces
  uint64_t cut = 0;               // documents that were longer than a row: cut, truncated or dropped
  uint64_t skipped = 0;           // documents of no token or one: they have nothing to predict

  uint64_t rows() const { return starts.empty() ? 0 : starts.size() - 1; }
};

inline constexpr uint64_t kMaxPackCapacity = 1 << 24;

// `documents`: where each begins and ends in the stream, in order. `capacity`: tokens per row, 2 to kMaxPackCapacity.
// Rows are numbered in the order of their first documents. RESOURCE_EXHAUSTED: more than 2^32 - 1 rows.
StatusOr<PackPlan> plan_packing(std::span<const Range> documents, uint64_t capacity, TooLong too_long);

}  // namespace keepstep::data
