// Copies of shards over real messages: ranks on several "nodes" of this machine, threads, TCP over loopback.
#include "rank/shards/shard_copier.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include "comm/test_world.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_testing.h"

namespace keepstep::rank {
namespace {

using comm::Communicator;
using comm::Rank;
using comm::TestWorld;

constexpr size_t kElements = 700'000;

// Stands in for agents: memory by node and rank, which outlives generations.
class Vaults {
 public:
  StatusOr<state::ShardVault> of(uint32_t node, Rank rank, uint64_t data_bytes, uint64_t text_room) {
    const std::lock_guard lock(mutex_);
    if (full.contains(node) && rank != node) {
      return absl::ResourceExhaustedError("no memory");
    }
    std::vector<std::byte>& memory = memory_[{node, rank, data_bytes}];
    if (memory.empty()) {
      memory.resize(state::ShardVault::memory_bytes(data_bytes, text_room));
      state::ShardVault::initialize(memory.data(), rank, data_bytes, text_room);
    }
    return state::ShardVault::open(memory.data(), memory.size());
  }
  std::set<uint32_t> full;

 private:
  std::mutex mutex_;
  std::map<std::tuple<uint32_t, Rank, uint64_t>, std::vector<std::byte>> memory_;
};

std::vector<float> state_of(Rank rank, brain::Version version) {
  std::vector<float> values(kElements + rank);
  std::iota(values.begin(), values.end(), static_cast<float>(100 * version + rank));
  return values;
}

class Replicas : public ::testing::Test {
 protected:
  static constexpr size_t kRanks = 3;  // each on its own node, so a rank's number is its node's
  const std::vector<uint32_t> nodes_{0, 1, 2};
  TestWorld world_{kRanks, comm::small_config(), nodes_};
  Vaults vaults_;
  state::HostCopy copy_;

  using Body = std::function<void(ShardCopier&, Communicator&, Rank)>;
  void generation(uint32_t copies, const Body& body) {
    const auto make = [&](Communicator& comm, Rank self) {
      return std::make_unique<ShardCopier>(
          comm, self, ShardKeepers(nodes_, {.copies = copies}).of(self),
          [this, self](Rank rank, uint64_t data, uint64_t text) { return vaults_.of(self, rank, data, text); },
          [](const brain::ParityBlock&, uint64_t, uint64_t) -> StatusOr<state::ShardVault> {
            return absl::InternalError("no parity was asked for");
          },
          copy_);
    };
    run_generation(world_, make, body);
  }
  state::ShardVault vault(uint32_t node, Rank rank) {
    return *vaults_.of(node, rank, (kElements + rank) * sizeof(float), 1);
  }
  void expect_copy(uint32_t node, Rank rank, brain::Version version) {
    state::ShardVault kept = vault(node, rank);
    ASSERT_TRUE(kept.has(version)) << "of rank " << rank << " on node " << node;
    EXPECT_TRUE(kept.verify(version).ok());
    std::vector<float> values(kElements + rank);
    const auto space = *state::TensorSpace::create({{values.data(), values.size() * sizeof(float)}});
    ASSERT_TRUE(kept.read(version, space, copy_).ok());
    EXPECT_EQ(values, state_of(rank, version));
    EXPECT_EQ(*kept.text(version), "text " + std::to_string(version));
  }
};

Status protect(ShardCopier& replicas, brain::Version version, std::vector<float>& values) {
  replicas.start(version, {{values.data(), values.size() * sizeof(float)}}, "text " + std::to_string(version));
  return replicas.wait(version);
}

TEST_F(Replicas, each_version_is_whole_on_as_many_nodes_as_were_asked_for) {
  for (const uint32_t copies : {1u, 2u, 3u}) {
    generation(copies, [&](ShardCopier& replicas, Communicator&, Rank self) {
      for (brain::Version version = 10 * copies; version < 10 * copies + 4; ++version) {
        std::vector<float> values = state_of(self, version);
        const Status status = protect(replicas, version, values);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(replicas.counts().versions, 4);
      EXPECT_EQ(replicas.counts().bytes, (kElements + self) * sizeof(float));
      replicas.finish();
    });
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (uint32_t next = 0; next < copies; ++next) {
        expect_copy((rank + next) % kRanks, rank, 10 * copies + 2);
        expect_copy((rank + next) % kRanks, rank, 10 * copies + 3);
      }
    }
    world_.begin_generation();
  }
}

TEST_F(Replicas, collectives_go_on_while_copies_are_made) {
  generation(2, [&](ShardCopier& replicas, Communicator& comm, Rank self) {
    for (brain::Version version = 0; version < 3; ++version) {
      std::vector<float> values = state_of(self, version);
      replicas.start(version, {{values.data(), values.size() * sizeof(float)}}, "text " + std::to_string(version));
      for (int round = 0; round < 20; ++round) {
        float sum = static_cast<float>(self);
        const comm::OpId op = comm.all_reduce(comm::kWorld, &sum, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
        EXPECT_EQ(comm.wait(op).outcome, comm::Outcome::kDone);
        comm.forget(op);
        EXPECT_EQ(sum, 3.0F);
      }
      ASSERT_TRUE(replicas.wait(version).ok());
    }
    replicas.finish();
  });
  expect_copy(2, 1, 2);
}

TEST_F(Replicas, an_interruption_ends_the_wait_and_leaves_no_half_copy) {
  generation(2, [&](ShardCopier& replicas, Communicator& comm, Rank self) {
    std::vector<float> values = state_of(self, 5);
    ASSERT_TRUE(protect(replicas, 5, values).ok());
    const comm::OpId all = comm.barrier(comm::kWorld);
    comm.wait(all);
    comm.forget(all);
    if (self == 2) {
      world_.interrupt();  // the others are at any point of their copies
      return;
    }
    std::vector<float> next = state_of(self, 6);
    const Status status = protect(replicas, 6, next);
    EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
  });
  for (Rank rank = 0; rank < kRanks; ++rank) {
    expect_copy(rank, rank, 5);
    expect_copy((rank + 1) % kRanks, rank, 5);
    for (const uint32_t node : {rank, (rank + 1) % 3}) {
      if (vault(node, rank).has(6)) {
        expect_copy(node, rank, 6);
      }
    }
  }
}

TEST_F(Replicas, what_a_keeper_has_already_is_not_sent_again) {
  const auto once = [&](brain::Version version) {
    generation(2, [&](ShardCopier& replicas, Communicator&, Rank self) {
      std::vector<float> values = state_of(self, version);
      ASSERT_TRUE(protect(replicas, version, values).ok());
      replicas.finish();
    });
    world_.begin_generation();
  };
  once(7);
  // A mark that only newly received bytes would remove.
  const uint64_t before = vault(1, 0).seal_of(7)->data_checksum;
  vault(1, 0).data(7)[0] ^= std::byte{1};
  once(7);
  EXPECT_EQ(vault(1, 0).seal_of(7)->data_checksum, before);
  EXPECT_TRUE(absl::IsDataLoss(vault(1, 0).verify(7)));
}

TEST_F(Replicas, a_keeper_without_memory_is_an_error_that_names_it) {
  vaults_.full = {1};
  generation(2, [&](ShardCopier& replicas, Communicator& comm, Rank self) {
    std::vector<float> values = state_of(self, 1);
    const Status status = protect(replicas, 1, values);
    if (self == 0) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_NE(status.message().find("rank 1 cannot keep a copy of 2800000 bytes of the shard of rank 0"),
                std::string::npos)
          << status;
      world_.interrupt();
    } else {
      EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
      stay(comm, self);
    }
  });
}

TEST_F(Replicas, a_shard_that_changed_its_size_gets_other_memory) {
  generation(2, [&](ShardCopier& replicas, Communicator&, Rank self) {
    std::vector<float> small(10 + self);
    ASSERT_TRUE(protect(replicas, 0, small).ok());
    std::vector<float> values = state_of(self, 1);
    ASSERT_TRUE(protect(replicas, 1, values).ok());
    replicas.finish();
  });
  expect_copy(1, 0, 1);
}

}  // namespace
}  // namespace keepstep::rank
