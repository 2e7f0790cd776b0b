// One effect for many nodes: the part that is the same for all is encoded once, and every stream sends those bytes.
//
// A Prepare sends out the rank table here: to each node either whole, or as the difference from the table it holds
// (brain/table/rank_table_ledger.h), encoded once for all nodes that need the same.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "brain/membership/membership_messages.h"
#include "brain/table/rank_table_ledger.h"
#include "net/hub.h"
#include "proto/control.pb.h"

namespace keepstep::coordinator {

// Records which table each node holds. Thread-safe.
class TableHoldings {
 public:
  void held(brain::NodeId node, uint32_t generation);  // 0: none
  void prepared(uint32_t generation, const brain::RankTable& table);
  uint32_t base_for(brain::NodeId node) const;
  // A table that is kept (asserted): that of base_for(), as long as no other was prepared since.
  brain::RankTable table(uint32_t generation) const;

 private:
  mutable std::mutex mutex_;
  brain::RankTableLedger ledger_;
};

// For one effect, which must outlive it; used by the brain's thread.
class Broadcast {
 public:
  // Records the table of a Prepare in `holdings`.
  Broadcast(const brain::Effect& effect, brain::Identity newest, TableHoldings& holdings);

  // The message for one node is the envelope, made for it alone, followed by the payload, which all nodes that need the
  // same share.
  std::string envelope_for(brain::NodeId node) const;
  net::SharedBytes payload_for(brain::NodeId node);

 private:
  net::SharedBytes payload_from(uint32_t base);

  const brain::Effect& effect_;
  const brain::Prepare* const prepare_;  // null for other effects
  const brain::Identity newest_;
  TableHoldings& holdings_;
  std::map<brain::NodeId, std::vector<const brain::Member*>> members_;
  std::map<uint32_t, net::SharedBytes> payloads_;  // by the generation of the base table; 0: no base
};

}  // namespace keepstep::coordinator
