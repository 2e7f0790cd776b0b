#include "coordinator/broadcast.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "proto/convert.h"
#include "proto/rank_table_wire.h"

namespace keepstep::coordinator {

void TableHoldings::held(brain::NodeId node, uint32_t generation) {
  const std::lock_guard lock(mutex_);
  ledger_.held(node, generation);
}

void TableHoldings::prepared(uint32_t generation, const brain::RankTable& table) {
  const std::lock_guard lock(mutex_);
  ledger_.prepared(generation, table);
}

uint32_t TableHoldings::base_for(brain::NodeId node) const {
  const std::lock_guard lock(mutex_);
  return ledger_.base_for(node);
}

brain::RankTable TableHoldings::table(uint32_t generation) const {
  const std::lock_guard lock(mutex_);
  const brain::RankTable* table = ledger_.table(generation);
  KEEPSTEP_CHECK(table != nullptr, "a difference to a rank table that is not kept");
  return *table;
}

Broadcast::Broadcast(const brain::Effect& effect, brain::Identity newest, TableHoldings& holdings)
    : effect_(effect), prepare_(std::get_if<brain::Prepare>(&effect)), newest_(newest), holdings_(holdings) {
  if (prepare_ == nullptr) {
    return;
  }
  holdings_.prepared(prepare_->identity.generation, prepare_->table);
  for (const brain::Member& member : prepare_->members) {
    members_[member.node].push_back(&member);
  }
}

// Envelope and payload set different fields of one message, so their concatenated bytes are that message.
std::string Broadcast::envelope_for(brain::NodeId node) const {
  const auto members = members_.find(node);
  return proto::envelope(effect_, node, newest_,
                         members == members_.end() ? std::vector<const brain::Member*>() : members->second)
      .SerializeAsString();
}

net::SharedBytes Broadcast::payload_for(brain::NodeId node) {
  return payload_from(prepare_ == nullptr ? 0 : holdings_.base_for(node));
}

net::SharedBytes Broadcast::payload_from(uint32_t base) {
  const auto found = payloads_.find(base);
  if (found != payloads_.end()) {
    return found->second;
  }
  control::FromCoordinator message = proto::payload(effect_);
  if (prepare_ != nullptr) {
    control::Prepare& prepare = *message.mutable_effect()->mutable_prepare();
    std::string whole = proto::encode(prepare_->identity, prepare_->table);
    if (base != 0) {
      std::string delta = proto::encode({prepare_->identity, base, proto::digest(prepare_->table),
                                         difference(holdings_.table(base), prepare_->table)});
      if (delta.size() < whole.size()) {
        prepare.set_delta(std::move(delta));
      }
    }
    if (!prepare.has_delta()) {
      prepare.set_table(std::move(whole));
    }
  }
  return payloads_.emplace(base, std::make_shared<const std::string>(message.SerializeAsString())).first->second;
}

}  // namespace keepstep::coordinator
