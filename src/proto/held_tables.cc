#include "proto/held_tables.h"

#include <utility>

#include "proto/rank_table_wire.h"

namespace keepstep::proto {
namespace {

Status check_identity(brain::Identity told, brain::Identity expected) {
  if (told == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat("a rank table of term %d, generation %d in an order of %d, %d",
                                                    told.term, told.generation, expected.term, expected.generation));
}

}  // namespace

StatusOr<brain::RankTable> HeldTables::take(const control::Prepare& prepare, brain::Identity identity) {
  brain::RankTable table;
  switch (prepare.ranks_case()) {
    case control::Prepare::kTable: {
      KEEPSTEP_ASSIGN_OR_RETURN(IdentifiedTable whole, decode_table(prepare.table()));
      KEEPSTEP_RETURN_IF_ERROR(check_identity(whole.identity, identity));
      table = std::move(whole.table);
      break;
    }
    case control::Prepare::kDelta: {
      KEEPSTEP_ASSIGN_OR_RETURN(table, apply_delta(prepare.delta(), identity));
      break;
    }
    case control::Prepare::RANKS_NOT_SET:
      return absl::InvalidArgumentError("an order to form a generation without a rank table");
  }
  tables_[identity.generation] = table;
  while (tables_.size() > kKept) {
    tables_.erase(tables_.begin());
  }
  return table;
}

StatusOr<brain::RankTable> HeldTables::apply_delta(const std::string& bytes, brain::Identity identity) {
  KEEPSTEP_ASSIGN_OR_RETURN(const IdentifiedDelta delta, decode_delta(bytes));
  KEEPSTEP_RETURN_IF_ERROR(check_identity(delta.identity, identity));
  std::string why = "it is not held";
  if (const auto base = tables_.find(delta.base); base != tables_.end()) {
    auto applied = apply(base->second, delta.delta, &why);
    if (applied.has_value() && digest(*applied) == delta.result) {
      return *std::move(applied);
    }
    why = applied.has_value() ? "the result is another table" : why;
  }
  tables_.clear();
  return absl::FailedPreconditionError(
      absl::StrFormat("a difference to the rank table of generation %d: %s", delta.base, why));
}

}  // namespace keepstep::proto
