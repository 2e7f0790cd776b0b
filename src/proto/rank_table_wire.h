// Rank tables and their differences as bytes: 16 bytes per entry, a dictionary of what entries have in common, and a
// constant part. Byte-exact in docs/formats/rank_table.md.
//
// Encoding the same table twice gives the same bytes. Decoding allocates no more memory than the input accounts for,
// and refuses (INVALID_ARGUMENT, naming the reason) anything that encode() never makes: a wrong version, size or
// checksum, unsorted splices, entries that form no table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "brain/table/rank_table.h"

namespace keepstep::proto {

inline constexpr size_t kRankTableEntryBytes = 16;

// Covers all contents of a table, whatever its encoding: equal tables have equal digests.
uint64_t digest(const brain::RankTable& table);

struct IdentifiedTable {
  brain::Identity identity;
  brain::RankTable table;
};
std::string encode(brain::Identity identity, const brain::RankTable& table);
StatusOr<IdentifiedTable> decode_table(std::string_view bytes);

// From the table of generation `base` (of the same term) to that of `identity`, which has the digest `result`.
struct IdentifiedDelta {
  brain::Identity identity;
  uint32_t base = 0;
  uint64_t result = 0;
  brain::RankTableDelta delta;
};
std::string encode(const IdentifiedDelta& delta);
StatusOr<IdentifiedDelta> decode_delta(std::string_view bytes);

}  // namespace keepstep::proto
