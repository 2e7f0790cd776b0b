// What this node's agent holds of the job's state in its memory (shard_vaults.h), for who asks from outside: `keepstep
// ckpt` of a place memory://JOB. Questions and answers are JSON objects (docs/design/control_door.md); a question says
// in "do" what is wanted:
//
//   hold   everything that is whole here
//   texts  what describes the shards of "ranks" at "version", as they lie here
//   check  reads vaults with numbers above "after" and compares them with their checksums, some gigabytes a question
//
// Ranks go on meanwhile and overwrite what is looked at; then it is said to be gone, and never to be corrupt.
//
// Loop thread only; reading is done by a thread of its own, one question at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <thread>
#include <vector>

#include "agent/loop/event_loop.h"
#include "agent/memory/shard_vaults.h"
#include "base/status.h"
#include "brain/copies/memory_versions.h"

namespace keepstep::agent {

inline constexpr uint64_t kMemoryCheckBytes = uint64_t{2} << 30;  // that one question reads; the last vault to its end
inline constexpr size_t kMemoryTextBytes = size_t{8} << 20;  // of texts in one answer, where it is not a single one
inline constexpr size_t kMaxTextBytes = size_t{12} << 20;    // of one text: agents send each other at most 20 MiB

class MemoryTier {
 public:
  using Answer = std::function<void(nlohmann::json)>;

  // `vaults` must outlive it.
  MemoryTier(std::shared_ptr<EventLoop> loop, const ShardVaults& vaults);
  // Ends the reading; that question is not answered.
  ~MemoryTier();

  // `answer` is called once, now or later. A nlohmann exception is thrown for a question without what it needs.
  void ask(const nlohmann::json& question, const Answer& answer);

 private:
  nlohmann::json hold() const;
  nlohmann::json texts(const nlohmann::json& question) const;
  void check(const nlohmann::json& question, const Answer& answer);

  std::shared_ptr<EventLoop> loop_;
  const ShardVaults& vaults_;
  std::atomic<bool> stop_{false};
  bool busy_ = false;
  std::thread reader_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the reader posted
};

// What the answer to "hold" of node `node` says. INVALID_ARGUMENT, or a nlohmann exception: it is none.
StatusOr<std::vector<brain::Holding>> holdings_from(brain::NodeId node, const nlohmann::json& answer);

}  // namespace keepstep::agent
