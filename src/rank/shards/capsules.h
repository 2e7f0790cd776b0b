// A rank's capsule: what forward changes (docs/design/step_commit.md), in its page, and copies on other nodes
// (capsule_copies.h). Main thread.
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
  // The generation has begun, and has its communicator. `inherited`: see Prepared.
  void enter(Fd inherited);

  // As of `version`; at most kCapsuleBytes.
  Status save(brain::Version version, std::string_view bytes);
  std::optional<std::string> load(brain::Version version) const;
  void clear();  // of all versions
  // Several nodes: whether this rank has per-rank values, said before the generation forms.
  void want(bool wanted) { wanted_ = wanted; }
  // While the generation forms: brings the capsule that was lost with its node, if another node has a copy; then load()
  // finds it. Statuses as of CapsuleCopies::share.
  Status share();
  // Before the vote on `version`: a copy of the capsule to another node, and copies of others to here. OK when
  // interrupted: then the vote finds the seal.
  Status copy(brain::Version version);

 private:
  std::optional<std::string> neighbours(brain::Version version) const;

  AgentLine& agent_;
  RankGeneration& generation_;
  CapsuleCopies copies_{kCapsuleBytes};
  bool wanted_ = false;
};

}  // namespace keepstep::rank
