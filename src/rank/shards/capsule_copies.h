// Copies of capsules on another node, for when a whole node is lost with the memory its capsules lie in.
//
// Each rank has a keeper: the rank at its place on the next node, in rank order and cyclic (modulo where nodes differ
// in size). Before a rank votes on a step it has taken the capsules of those it keeps, so a step that counts has a copy
// of each capsule on two nodes: "the keeper voted" implies "the keeper has it". Two versions are kept, in memory that
// outlives the keeper's process (kept_capsules.h): whoever takes its rank has them.
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
  // No capsule is longer than `most_bytes`.
  explicit CapsuleCopies(size_t most_bytes) : most_bytes_(most_bytes) {}

  // The ranks are others from here on: what is kept is nobody's any more.
  void forget() { kept_ = KeptCapsules(); }
  // What the process that was this rank before kept.
  void inherit(KeptCapsules kept) { kept_ = std::move(kept); }
  // Called with the memory for copies when it was made: whoever has it can inherit.
  using OnMemory = std::function<void(int fd)>;
  void on_memory(OnMemory tell) { on_memory_ = std::move(tell); }

  // `nodes`: by rank, as in comm::Endpoint; `comm` stays the caller's, and must be there for share() and copy().
  void enter(comm::Communicator& comm, comm::Rank self, const std::vector<uint32_t>& nodes);

  // While a generation forms, by all its ranks: who has nothing of `version` gets it from a rank that has a copy, and
  // keepers get what they lack. `wanted`: this rank has per-rank values, all generation long. Returns what this rank
  // got; nothing if it had it, wants none, or no copy is left. ABORTED: interrupted. UNAVAILABLE: the link to a rank
  // broke. `allow_substitute`, the same on all ranks: who cannot have its own gets that of another rank (of the lowest
  // that has one); for ranks that are new in an elastic job.
  StatusOr<std::optional<std::string>> share(brain::Version version, bool wanted, const std::optional<std::string>& own,
                                             bool allow_substitute = false);

  // Before the vote on `version`, by all ranks: gives ours away, takes those we keep. Statuses as above.
  Status copy(brain::Version version, std::string_view own);

  // The copy of `rank`'s capsule that lies here.
  std::optional<std::string> copy_of(comm::Rank rank, brain::Version version) const;

 private:
  // Transfers under way between this rank and others; all of them are waited for, whatever becomes of them.
  class Exchange;

  bool across() const { return !keepers_.empty(); }
  Status make_room(brain::Version version);

  const size_t most_bytes_;
  comm::Communicator* comm_ = nullptr;
  comm::Rank self_ = 0;
  std::vector<comm::Rank> keepers_;  // by rank; empty: one node
  std::vector<bool> wanted_;         // by rank, from share()
  KeptCapsules kept_;
  OnMemory on_memory_;
};

// By rank: who keeps its capsule. Empty if all ranks are on one node.
std::vector<comm::Rank> keepers_of(const std::vector<uint32_t>& nodes);

}  // namespace keepstep::rank
