// Makes memory for shards (shard_vaults.h) when a rank asks for it. A thread does this, because to fill the memory with
// pages takes some tenths of a second per gigabyte, and meanwhile the agent's loop must notice deaths and seal
// generations.
//
// Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "agent/memory/memory_thread.h"
#include "agent/memory/shard_vaults.h"
#include "base/status.h"

namespace keepstep::agent {

class VaultMaker {
 public:
  // The descriptor, which the vaults keep, or an error of ShardVaults::find() or add().
  using Answer = std::function<void(StatusOr<int>)>;

  // `vaults` must outlive it. Memory dropped there is returned to the kernel by the same thread.
  VaultMaker(std::shared_ptr<EventLoop> loop, ShardVaults& vaults);
  ~VaultMaker() { vaults_.discard_with({}); }

  // `answer` is called at once if there is such memory, otherwise once it is made. Requests are served one at a time,
  // in order.
  void ask(ShardVaults::Need need, const Answer& answer);

 private:
  struct Question {
    ShardVaults::Need need;
    Answer answer;
  };
  bool answered(const Question& question) const;
  void make_next();

  ShardVaults& vaults_;
  std::deque<Question> waiting_;  // the memory of the first one is being made
  MemoryThread thread_;
};

}  // namespace keepstep::agent
