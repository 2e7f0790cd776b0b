// The rank tables that an agent holds from one stream: a difference starts from one of them.
#pragma once

#include <cstdint>
#include <map>

#include "base/status.h"
#include "brain/table/rank_table.h"
#include "proto/control.pb.h"

namespace keepstep::proto {

class HeldTables {
 public:
  // A difference may start from an older table than the newest: from what the coordinator last heard of.
  static constexpr size_t kKept = 8;

  // The rank table that came with a Prepare of `identity`: itself, or what its difference makes of the table it names.
  // FAILED_PRECONDITION: that table is not held, or is another one; all tables are dropped then, and the coordinator
  // must be told (control::TableLost). INVALID_ARGUMENT: malformed, or of another identity.
  StatusOr<brain::RankTable> take(const control::Prepare& prepare, brain::Identity identity);

  // The generation of the newest one; 0: none.
  uint32_t newest() const { return tables_.empty() ? 0 : tables_.rbegin()->first; }

 private:
  StatusOr<brain::RankTable> apply_delta(const std::string& bytes, brain::Identity identity);

  std::map<uint32_t, brain::RankTable> tables_;  // by generation
};

}  // namespace keepstep::proto
