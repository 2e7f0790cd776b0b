// What tests of copies and of parity over messages have in common. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/test_world.h"
#include "rank/shards/shard_replicas.h"

namespace keepstep::rank {

// All ranks of a generation with their replicas, which outlive the communicators, as they must.
inline void run_generation(comm::TestWorld& world,
                           const std::function<std::unique_ptr<ShardReplicas>(comm::Communicator&, comm::Rank)>& make,
                           const std::function<void(ShardReplicas&, comm::Communicator&, comm::Rank)>& body) {
  std::mutex mutex;
  std::vector<std::unique_ptr<ShardReplicas>> made;
  world.run(comm::Mode::kThreads, [&](comm::Communicator& comm, comm::Rank self) {
    std::unique_ptr<ShardReplicas> own = make(comm, self);
    ShardReplicas& replicas = *own;
    {
      const std::lock_guard lock(mutex);
      made.push_back(std::move(own));
    }
    body(replicas, comm, self);
    replicas.stop();
  });
}

// Stays, for the others, until somebody interrupts the generation: whoever left would look like a broken link.
inline void stay(comm::Communicator& comm, comm::Rank self) {
  std::byte never;
  const comm::OpId op = comm.receive(comm::kWorld, &never, 1, self, 1);
  EXPECT_EQ(comm.wait(op).outcome, comm::Outcome::kInterrupted);
  comm.forget(op);
}

}  // namespace keepstep::rank
