#include "brain/table/rank_table_ledger.h"

namespace keepstep::brain {

void RankTableLedger::prepared(uint32_t generation, const RankTable& table) {
  tables_.try_emplace(generation, table);
  while (tables_.size() > kKept) {
    tables_.erase(tables_.begin());
  }
}

void RankTableLedger::held(NodeId node, uint32_t generation) {
  if (generation == 0) {
    held_.erase(node);
  } else {
    held_[node] = generation;
  }
}

uint32_t RankTableLedger::base_for(NodeId node) const {
  const auto found = held_.find(node);
  return found != held_.end() && tables_.contains(found->second) ? found->second : 0;
}

const RankTable* RankTableLedger::table(uint32_t generation) const {
  const auto found = tables_.find(generation);
  return found == tables_.end() ? nullptr : &found->second;
}

}  // namespace keepstep::brain
