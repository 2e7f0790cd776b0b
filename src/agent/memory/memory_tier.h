// What this node's agent holds of the job's state in its memory (shard_vaults.h), for requests from outside: `keepstep
// ckpt` of a destination memory://JOB. Questions and answers are JSON objects (docs/design/control_door.md). The "do"
// of a question is one of:
//
//   hold   lists everything that is complete here
//   texts  returns the descriptions of the shards of "ranks" at "version", as they are stored here
//   check  reads vaults with numbers above "after" and verifies their checksums, some gigabytes per question
//
// Meanwhile ranks keep overwriting the vaults. Data overwritten during a check is reported as gone, never as corrupt.
//
// Loop thread only. A separate thread does the reading, one question at a time.
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

inline constexpr uint64_t kMemoryCheckBytes = uint64_t{2}
                                              << 30;         // read per question; the last vault is read to its end
inline constexpr size_t kMemoryTextBytes = size_t{8} << 20;  // of the texts in one answer, unless it has just one
inline constexpr size_t kMaxTextBytes = size_t{12} << 20;    // of one text; a message between agents has at most 20 MiB

class MemoryTier {
 public:
  using Answer = std::function<void(nlohmann::json)>;

  // `vaults` must outlive it.
  MemoryTier(std::shared_ptr<EventLoop> loop, const ShardVaults& vaults);
  // Stops a check in progress; its question is not answered.
  ~MemoryTier();

  // `answer` is called once, now or later. Throws a nlohmann exception for a question that lacks a field.
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
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for tasks that the reader posted
};

// Parses the answer of node `node` to "hold". INVALID_ARGUMENT, or a nlohmann exception, if it is malformed.
StatusOr<std::vector<brain::Holding>> holdings_from(brain::NodeId node, const nlohmann::json& answer);

}  // namespace keepstep::agent
