// Memory for shards (shard_vaults.h), made when a rank asks for it: by a thread, because to fill it with pages takes
// some tenths of a second a gigabyte, and the agent's loop has deaths to notice and generations to seal meanwhile.
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
  // The descriptor, which stays the vaults'. Errors of ShardVaults::find() and add().
  using Answer = std::function<void(StatusOr<int>)>;

  // `vaults` must outlive it; what is dropped there is given back to the kernel by the same thread.
  VaultMaker(std::shared_ptr<EventLoop> loop, ShardVaults& vaults);
  ~VaultMaker() { vaults_.discard_with({}); }

  // `answer` is called at once where there is such memory, else once it was made: one after the other, in the order of
  // the questions.
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
