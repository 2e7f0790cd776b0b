// Copies of capsules on another node, in case a whole node is lost with the memory that holds its capsules.
//
// Each rank has a keeper: the rank at the same place on the next node, in rank order and cyclic (modulo if nodes differ
// in size). A rank has received the capsules that it keeps for others before it votes on a step, so a committed step
// has a copy of each capsule on two nodes: "the keeper voted" implies "the keeper has it". Two versions are kept, in
// memory that outlives the keeper's process (kept_capsules.h) and passes to the next process with its rank.
//
// Everything here is a no-op in a job on one node. Used by the worker's main thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "brain/types.h"
#include "comm/communicator.h"
#include "rank/shards/kept_capsules.h"

namespace keepstep::rank {

class CapsuleCopies {
 public:
  // No capsule is longer than `max_bytes`.
  explicit CapsuleCopies(size_t max_bytes) : max_bytes_(max_bytes) {}

  // The ranks change: the kept copies no longer belong to anyone.
  void forget() { kept_ = KeptCapsules(); }
  // Takes over the copies of the process that held this rank before.
  void inherit(KeptCapsules kept) { kept_ = std::move(kept); }
  // Called with new memory for copies; a process that receives it can inherit them.
  using OnMemory = std::function<void(int fd)>;
  void on_memory(OnMemory tell) { on_memory_ = std::move(tell); }

  // `nodes`: by rank, as in comm::Endpoint. The caller owns `comm`, which must exist during share() and copy().
  void enter(comm::Communicator& comm, comm::Rank self, const std::vector<uint32_t>& nodes);

  // All ranks call it while a generation forms: ranks without a capsule of `version` get it from a rank that has a
  // copy, and keepers get the copies they lack. `wanted`: this rank has per-rank values, for the whole generation.
  // Returns the capsule this rank received; std::nullopt if it already had it, wants none, or no copy is left. ABORTED:
  // interrupted. UNAVAILABLE: the link to a rank broke. `allow_substitute`, the same on all ranks: a rank whose own
  // capsule is lost gets another rank's (that of the lowest rank that has one); for new ranks of an elastic job.
  StatusOr<std::optional<std::string>> share(brain::Version version, bool wanted, const std::optional<std::string>& own,
                                             bool allow_substitute = false);

  // All ranks call it before the vote on `version`: sends this rank's capsule, receives those it keeps. Statuses as
  // above.
  Status copy(brain::Version version, std::string_view own);

  // The local copy of `rank`'s capsule.
  std::optional<std::string> copy_of(comm::Rank rank, brain::Version version) const;

 private:
  // Transfers in progress between this rank and others; all of them are waited for, even after an error.
  class Exchange;

  bool across() const { return !keepers_.empty(); }
  Status make_room(brain::Version version);

  const size_t max_bytes_;
  comm::Communicator* comm_ = nullptr;
  comm::Rank self_ = 0;
  std::vector<comm::Rank> keepers_;  // by rank; empty: one node
  std::vector<bool> wanted_;         // by rank, from share()
  KeptCapsules kept_;
  OnMemory on_memory_;
};

// By rank: the keeper of its capsule. Empty if all ranks are on one node.
std::vector<comm::Rank> keepers_of(const std::vector<uint32_t>& nodes);

}  // namespace keepstep::rank
