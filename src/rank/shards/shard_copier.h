// Copies this rank's shard while it computes the next step: into its node's memory, and into that of other nodes
// through the ranks there, its keepers. Also receives the copies that this rank keeps for others. With parity instead
// (parity_keeper.h), keepers code what they receive.
//
// Follows docs/design/sharded.md. A version is protected once its copy is complete here and at every keeper (or coded
// there); only then does a rank vote on the next step. Waits, and their duration, are counted.
//
// Owns a thread that copies, and one for each rank whose copies it keeps and for each parity block it keeps. They use
// messages of the world group with reserved tags (reserved_tags.h); collectives continue meanwhile.
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

// Where this node holds a rank's versions; the agent makes or finds the memory. May be called any number of times, from
// any thread. The vault lives as long as the generation.
using VaultOf = std::function<StatusOr<state::ShardVault>(comm::Rank, uint64_t data_bytes, uint64_t text_room)>;

// The room for a text of this length, with reserve because numbers in it grow longer.
inline uint64_t shard_text_room(uint64_t bytes) { return bytes * 2 + (64 << 10); }

class ShardCopier {
 public:
  // `comm` must outlive stop(), and this object must outlive `comm`: a receive may be left behind.
  ShardCopier(comm::Communicator& comm, comm::Rank self, ShardDuties duties, VaultOf vault_of,
              const ParityVaultOf& parity_vault_of, state::DeviceCopy& copy);
  ~ShardCopier();

  // Begins to copy `version`; `tensors` must not change until wait() or stop() has returned. No other copy may be in
  // progress: call wait() first.
  void start(brain::Version version, std::vector<state::Region> tensors, std::string text);
  // Waits until `version` is protected. ABORTED: interrupted. Other errors: it could not be copied, and why.
  Status wait(brain::Version version);
  // After this, nothing reads from tensors or writes to vaults. Immediate after an interruption.
  void stop();
  // The job is over on all ranks: waits for copies in progress, tells the keepers, and waits for the ranks whose copies
  // this rank keeps. An interruption ends it.
  void finish();

  struct Counts {
    uint64_t versions = 0;  // protected
    uint64_t bytes = 0;     // of tensors in the newest one
    int64_t copied_ns = 0;  // duration for the newest one, until the last keeper's answer
    int64_t given_ns = 0;   // part of copied_ns spent giving it to the keepers
    uint64_t waits = 0;     // calls of wait() that found it unfinished
    int64_t waited_ns = 0;  // total duration of those
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
  bool finishing_ = false;                   // no more jobs will come
  std::optional<brain::Version> protected_;  // the newest
  Status status_;                            // why no more versions are
  Counts counts_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Buffers> mine_;
  std::vector<std::unique_ptr<Buffers>> buffers_;              // targets of receives left behind
  std::vector<std::unique_ptr<ParityKeeper>> parity_keepers_;  // likewise
};

}  // namespace keepstep::rank
