// Which rank table each node holds, and so what it must be sent next: the whole table, or only the difference. Pure.
//
// With everything they send, nodes report what they hold; the difference is computed from that. A node about which
// nothing is known (its stream is new, it lost its table, it is too far behind) gets the whole table.
#pragma once

#include <cstdint>
#include <map>

#include "brain/table/rank_table.h"
#include "brain/types.h"

namespace keepstep::brain {

class RankTableLedger {
 public:
  static constexpr size_t kKept = 4;  // tables that a difference may be based on, including the newest

  // The table of a generation that is being prepared. Safe to repeat.
  void prepared(uint32_t generation, const RankTable& table);

  // The node reports that it holds the table of `generation`; 0: no table.
  void held(NodeId node, uint32_t generation);

  // The generation whose table is the base for this node; 0: send it the whole table.
  uint32_t base_for(NodeId node) const;

  // Null if it is not (or no longer) kept.
  const RankTable* table(uint32_t generation) const;

 private:
  std::map<uint32_t, RankTable> tables_;  // by generation
  std::map<NodeId, uint32_t> held_;
};

}  // namespace keepstep::brain
