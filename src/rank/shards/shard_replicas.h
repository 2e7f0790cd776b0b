// Copies of this rank's shard, made while it computes the next step: into its node's memory, and into that of other
// nodes through the ranks there, its keepers; and the other way round, what this rank keeps for others. Where there is
// parity instead (parity_keeper.h), keepers code what they are given.
//
// Follows docs/design/sharded.md. A version is protected once its copy is whole here and what comes of it at every
// keeper; a rank votes on the next step only then. What waits, and how long, is counted.
//
// Owns a thread that copies, and one for each rank whose copies, and each block of parity, are kept here. They use
// messages of the world group and its reserved tags (reserved_tags.h); collectives go on meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "rank/shards/parity_keeper.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_line.h"
#include "state/vault/shard_vault.h"

namespace keepstep::rank {

// Where a rank's versions lie on this node, made or found by the agent; as often as wanted, from any thread. The vault
// lives as long as the generation.
using VaultOf = std::function<StatusOr<state::ShardVault>(comm::Rank, uint64_t data_bytes, uint64_t text_room)>;

// For a text of so many bytes: numbers in it get longer.
inline uint64_t shard_text_room(uint64_t bytes) { return bytes * 2 + (64 << 10); }

class ShardReplicas {
 public:
  // `comm` must outlive stop(), and this must outlive `comm`: a receive may stay behind.
  ShardReplicas(comm::Communicator& comm, comm::Rank self, ShardDuties duties, VaultOf vault_of,
                const ParityVaultOf& parity_vault_of, state::DeviceCopy& copy);
  ~ShardReplicas();

  // Begins to copy `version`; `tensors` must not change before wait() returned, or stop(). Replaces no copy under way:
  // wait() comes first.
  void start(brain::Version version, std::vector<state::Region> tensors, std::string text);
  // Until `version` is protected. ABORTED: interrupted. Others: it could not be copied, with the reason.
  Status wait(brain::Version version);
  // Nothing is read from tensors or written to vaults any more. After an interruption at once.
  void stop();
  // The job is over on all ranks: waits for what is under way, tells the keepers, and waits for those we keep copies
  // of. An interruption ends it.
  void finish();

  struct Counts {
    uint64_t versions = 0;  // protected
    uint64_t bytes = 0;     // of tensors in the newest one
    int64_t copied_ns = 0;  // the newest one took, to the last keeper's word
    int64_t given_ns = 0;   // of that, to give it to the keepers
    uint64_t waits = 0;     // of wait(), that found it unfinished
    int64_t waited_ns = 0;  // in these
  };
  Counts counts() const;

 private:
  struct Buffers;
  void run();
  void keep(Buffers& of);
  Status copy(brain::Version version, const std::vector<state::Region>& tensors, const std::string& text,
              int64_t* given_ns);
  Status give(comm::Rank keeper, state::ShardVault& vault, brain::Version version);
  Status take(Buffers& of, bool* over);

  std::atomic<bool> stop_{false};
  ShardLine line_;
  const comm::Rank self_;
  const std::vector<comm::Rank> keepers_;
  const VaultOf vault_of_;
  state::DeviceCopy& copy_;
  ParityGiver parity_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Job {
    brain::Version version = 0;
    std::vector<state::Region> tensors;
    std::string text;
  };
  std::optional<Job> job_;                   // until it is done
  bool finishing_ = false;                   // no job comes any more
  std::optional<brain::Version> protected_;  // the newest
  Status status_;                            // why no more are
  Counts counts_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Buffers> mine_;
  std::vector<std::unique_ptr<Buffers>> buffers_;              // what a receive that stays behind would write to
  std::vector<std::unique_ptr<ParityKeeper>> parity_keepers_;  // likewise
};

}  // namespace keepstep::rank
