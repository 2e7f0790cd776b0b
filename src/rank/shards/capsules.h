// A rank's capsule: the values that forward changes (docs/design/step_commit.md), in its page, and its copies on other
// nodes (capsule_copies.h). Main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "rank/shards/capsule_copies.h"

namespace keepstep::rank {

class Capsules {
 public:
  Capsules(AgentLine& agent, RankGeneration& generation);
  // The generation has begun and has its communicator. `inherited`: see Prepared.
  void enter(Fd inherited);

  // The values at `version`; at most kCapsuleBytes.
  Status save(brain::Version version, std::string_view bytes);
  std::optional<std::string> load(brain::Version version) const;
  void clear();  // of all versions
  // With several nodes: whether this rank has per-rank values. Call it before the generation forms.
  void want(bool wanted) { wanted_ = wanted; }
  // While the generation forms: recovers a capsule that was lost with its node, if another node has a copy; load() then
  // finds it. Statuses as for CapsuleCopies::share.
  Status share();
  // Before the vote on `version`: sends a copy of the capsule to another node, and receives the copies kept here. OK
  // when interrupted: the vote will find the seal.
  Status copy(brain::Version version);
  bool copied() const { return generation_.across(); }  // there are other nodes

 private:
  std::optional<std::string> neighbours(brain::Version version) const;

  AgentLine& agent_;
  RankGeneration& generation_;
  CapsuleCopies copies_{kCapsuleBytes};
  bool wanted_ = false;
};

}  // namespace keepstep::rank
