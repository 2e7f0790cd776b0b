// The rank tables that an agent holds from one stream, as bases for differences.
#pragma once

#include <cstdint>
#include <map>

#include "base/status.h"
#include "brain/table/rank_table.h"
#include "proto/control.pb.h"

namespace keepstep::proto {

class HeldTables {
 public:
  // A difference may start from an older table than the newest: the latest that the coordinator knew of.
  static constexpr size_t kKept = 8;

  // Returns the rank table of a Prepare of `identity`: the one it contains, or its difference applied to the table it
  // names. FAILED_PRECONDITION: that table is not held, or differs; all tables are dropped then, and the coordinator
  // must be told (control::TableLost). INVALID_ARGUMENT: malformed, or of another identity.
  StatusOr<brain::RankTable> take(const control::Prepare& prepare, brain::Identity identity);

  // The generation of the newest table; 0: none.
  uint32_t newest() const { return tables_.empty() ? 0 : tables_.rbegin()->first; }

 private:
  StatusOr<brain::RankTable> apply_delta(const std::string& bytes, brain::Identity identity);

  std::map<uint32_t, brain::RankTable> tables_;  // by generation
};

}  // namespace keepstep::proto
