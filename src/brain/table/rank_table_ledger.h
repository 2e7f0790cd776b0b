// Which rank table each node holds, and so what the next one costs it: the whole table, or only what changed. Pure.
//
// Nodes say what they hold with everything they send; a difference is made to that. A node of which nothing is known
// (its stream is new, it lost its table, it is too far behind) gets the whole table.
#pragma once

#include <cstdint>
#include <map>

#include "brain/table/rank_table.h"
#include "brain/types.h"

namespace keepstep::brain {

class RankTableLedger {
 public:
  static constexpr size_t kKept = 4;  // tables that a difference may start from, the newest included

  // The table of a generation that is prepared. A repetition changes nothing.
  void prepared(uint32_t generation, const RankTable& table);

  // The node says that it holds the table of `generation`; 0: of none.
  void held(NodeId node, uint32_t generation);

  // The generation whose table is the base for this node; 0: send it the whole table.
  uint32_t base_for(NodeId node) const;

  // Null if it is not kept (any more).
  const RankTable* table(uint32_t generation) const;

 private:
  std::map<uint32_t, RankTable> tables_;  // by generation
  std::map<NodeId, uint32_t> held_;
};

}  // namespace keepstep::brain
