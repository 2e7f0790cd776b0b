// Shared by the tests of copies and of parity over messages. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/test_world.h"
#include "rank/shards/shard_copier.h"

namespace keepstep::rank {

// Runs all ranks of a generation with their replicas, which must outlive the communicators.
inline void run_generation(comm::TestWorld& world,
                           const std::function<std::unique_ptr<ShardCopier>(comm::Communicator&, comm::Rank)>& make,
                           const std::function<void(ShardCopier&, comm::Communicator&, comm::Rank)>& body) {
  std::mutex mutex;
  std::vector<std::unique_ptr<ShardCopier>> made;
  world.run(comm::Mode::kThreads, [&](comm::Communicator& comm, comm::Rank self) {
    std::unique_ptr<ShardCopier> own = make(comm, self);
    ShardCopier& replicas = *own;
    {
      const std::lock_guard lock(mutex);
      made.push_back(std::move(own));
    }
    body(replicas, comm, self);
    replicas.stop();
  });
}

// Stays until somebody interrupts the generation: leaving would look like a broken link to the others.
inline void stay(comm::Communicator& comm, comm::Rank self) {
  std::byte never;
  const comm::OpId op = comm.receive(comm::kWorld, &never, 1, self, 1);
  EXPECT_EQ(comm.wait(op).outcome, comm::Outcome::kInterrupted);
  comm.forget(op);
}

}  // namespace keepstep::rank
