// Parity of shards over real messages: ranks on several "nodes" of this machine, threads, TCP over loopback.
#include "rank/shards/parity_keeper.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <variant>

#include "comm/test_world.h"
#include "rank/shards/shard_copier.h"
#include "rank/shards/shard_testing.h"

namespace keepstep::rank {
namespace {

using brain::ParityBlock;
using comm::Communicator;
using comm::Rank;
using comm::TestWorld;

constexpr size_t kElements = 700'000;  // of rank 0; three chunks

// Stands in for agents: memory by node and owner, which outlives generations.
class Vaults {
 public:
  using Of = std::variant<Rank, ParityBlock>;
  StatusOr<state::ShardVault> of(uint32_t node, const Of& of, uint64_t data_bytes, uint64_t text_room) {
    const std::lock_guard lock(mutex_);
    if (full.contains(node) && std::holds_alternative<ParityBlock>(of)) {
      return absl::ResourceExhaustedError("no memory");
    }
    std::vector<std::byte>& memory = memory_[{node, of}];
    if (memory.empty()) {
      memory.resize(state::ShardVault::memory_bytes(data_bytes, text_room));
      std::visit([&](const auto& what) { state::ShardVault::initialize(memory.data(), what, data_bytes, text_room); },
                 of);
    }
    return state::ShardVault::open(memory.data(), memory.size());
  }
  StatusOr<state::ShardVault> find(uint32_t node, const Of& of) {
    std::vector<std::byte>& memory = memory_.at({node, of});
    return state::ShardVault::open(memory.data(), memory.size());
  }
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& [of, memory] : memory_) {
      bytes += memory.size();
    }
    return bytes;
  }
  std::set<uint32_t> full;

 private:
  std::mutex mutex_;
  std::map<std::pair<uint32_t, Of>, std::vector<std::byte>> memory_;
};

// Ranks have shards of different lengths; rank 3's is less than half as long as the others.
std::vector<float> state_of(Rank rank, brain::Version version) {
  std::vector<float> values(rank == 3 ? kElements / 3 : kElements + 1000 * rank);
  std::iota(values.begin(), values.end(), static_cast<float>(100 * version + rank));
  return values;
}

class Parity : public ::testing::TestWithParam<Protection> {
 protected:
  static constexpr size_t kRanks = 4;  // each on its own node, so a rank's number is its node's
  const std::vector<uint32_t> nodes_{0, 1, 2, 3};
  TestWorld world_{kRanks, comm::small_config(), nodes_};
  Vaults vaults_;
  state::HostCopy copy_;

  using Body = std::function<void(ShardCopier&, Communicator&, Rank)>;
  void generation(const Body& body) {
    const auto make = [&](Communicator& comm, Rank self) {
      return std::make_unique<ShardCopier>(
          comm, self, ShardKeepers(nodes_, GetParam()).of(self),
          [this, self](Rank rank, uint64_t data, uint64_t text) { return vaults_.of(self, rank, data, text); },
          [this, self](const ParityBlock& block, uint64_t data, uint64_t text) {
            return vaults_.of(self, block, data, text);
          },
          copy_);
    };
    run_generation(world_, make, body);
  }

  std::map<ParityBlock, Rank> blocks() const {
    std::map<ParityBlock, Rank> blocks;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (const ParityBlock& block : ShardKeepers(nodes_, GetParam()).of(rank).parity_kept) {
        blocks.emplace(block, rank);
      }
    }
    return blocks;
  }

  // Compares with reed_solomon applied at once to the values themselves.
  void expect_parity(const ParityBlock& block, Rank keeper, brain::Version version) {
    state::ShardVault kept = *vaults_.find(keeper, block);
    ASSERT_TRUE(kept.has(version)) << "on node " << keeper;
    EXPECT_TRUE(kept.verify(version).ok());
    std::vector<std::vector<float>> shards;
    std::vector<state::ReedSolomon::ConstBlock> data;
    size_t longest = 0;
    for (const Rank member : block.members) {
      shards.push_back(state_of(member, version));
    }
    for (const std::vector<float>& shard : shards) {
      data.push_back(std::as_bytes(std::span(shard)));
      longest = std::max(longest, data.back().size());
    }
    const auto members = static_cast<uint32_t>(block.members.size());
    std::vector<std::vector<std::byte>> parity(GetParam().parity, std::vector<std::byte>(longest));
    const std::vector<state::ReedSolomon::Block> into(parity.begin(), parity.end());
    ASSERT_TRUE(state::ReedSolomon::create(members, GetParam().parity)->encode(data, into).ok());
    const std::span<const std::byte> made = kept.data(version);
    EXPECT_TRUE(std::equal(made.begin(), made.end(), parity[block.row].begin(), parity[block.row].end()));
    const auto text = *state::ParityText::parse(*kept.text(version), members);
    for (uint32_t member = 0; member < members; ++member) {
      EXPECT_EQ(text.text_of(member),
                "text " + std::to_string(version) + " of " + std::to_string(block.members[member]));
      EXPECT_EQ(text.members()[member].data_bytes, data[member].size());
    }
  }
};

Status protect(ShardCopier& replicas, Rank self, brain::Version version, std::vector<float>& values) {
  replicas.start(version, {{values.data(), values.size() * sizeof(float)}},
                 "text " + std::to_string(version) + " of " + std::to_string(self));
  return replicas.wait(version);
}

TEST_P(Parity, each_version_is_coded_on_other_nodes) {
  generation([&](ShardCopier& replicas, Communicator&, Rank self) {
    for (brain::Version version = 1; version < 5; ++version) {
      std::vector<float> values = state_of(self, version);
      const Status status = protect(replicas, self, version, values);
      ASSERT_TRUE(status.ok()) << status;
    }
    replicas.finish();
  });
  ASSERT_FALSE(blocks().empty());
  for (const auto& [block, keeper] : blocks()) {
    EXPECT_EQ(vaults_.find(keeper, block)->versions(), (std::vector<brain::Version>{3, 4}));
    expect_parity(block, keeper, 3);
    expect_parity(block, keeper, 4);
  }
  uint64_t state = 0;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    state += state_of(rank, 1).size() * sizeof(float);
  }
  RecordProperty("bytes_per_byte_of_state", std::to_string(static_cast<double>(vaults_.bytes()) / state));
}

TEST_P(Parity, collectives_go_on_while_it_is_made) {
  generation([&](ShardCopier& replicas, Communicator& comm, Rank self) {
    for (brain::Version version = 0; version < 3; ++version) {
      std::vector<float> values = state_of(self, version);
      replicas.start(version, {{values.data(), values.size() * sizeof(float)}},
                     "text " + std::to_string(version) + " of " + std::to_string(self));
      for (int round = 0; round < 20; ++round) {
        float sum = static_cast<float>(self);
        const comm::OpId op = comm.all_reduce(comm::kWorld, &sum, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
        EXPECT_EQ(comm.wait(op).outcome, comm::Outcome::kDone);
        comm.forget(op);
        EXPECT_EQ(sum, 6.0F);
      }
      ASSERT_TRUE(replicas.wait(version).ok());
    }
    replicas.finish();
  });
  for (const auto& [block, keeper] : blocks()) {
    expect_parity(block, keeper, 2);
  }
}

TEST_P(Parity, an_interruption_leaves_the_version_before_and_no_half_of_the_next) {
  for (int round = 0; round < 5; ++round) {  // each ends at a different point
    const brain::Version version = 10 * static_cast<brain::Version>(round);
    generation([&](ShardCopier& replicas, Communicator& comm, Rank self) {
      std::vector<float> values = state_of(self, version);
      ASSERT_TRUE(protect(replicas, self, version, values).ok());
      const comm::OpId all = comm.barrier(comm::kWorld);
      comm.wait(all);
      comm.forget(all);
      std::vector<float> next = state_of(self, version + 1);
      if (self == 2) {
        replicas.start(version + 1, {{next.data(), next.size() * sizeof(float)}},
                       "text " + std::to_string(version + 1) + " of 2");
        for (int steps = 0; steps < round * 1000; ++steps) {
          std::this_thread::yield();
        }
        world_.interrupt();
        replicas.stop();
        return;
      }
      const Status status = protect(replicas, self, version + 1, next);
      EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
      replicas.stop();
    });
    for (const auto& [block, keeper] : blocks()) {
      expect_parity(block, keeper, version);
      if (vaults_.find(keeper, block)->has(version + 1)) {
        expect_parity(block, keeper, version + 1);
      }
    }
    world_.begin_generation();
  }
}

TEST_P(Parity, only_lost_blocks_are_made_again) {
  const auto once = [&] {
    generation([&](ShardCopier& replicas, Communicator&, Rank self) {
      std::vector<float> values = state_of(self, 7);
      ASSERT_TRUE(protect(replicas, self, 7, values).ok());
      replicas.finish();
    });
    world_.begin_generation();
  };
  once();
  const auto all = blocks();
  const auto& [lost, its_keeper] = *all.begin();
  vaults_.find(its_keeper, lost)->begin(7);
  for (auto other = std::next(all.begin()); other != all.end(); ++other) {
    // A mark that only newly received bytes would remove.
    vaults_.find(other->second, other->first)->data(7)[0] ^= std::byte{1};
  }
  once();
  expect_parity(lost, its_keeper, 7);
  for (auto other = std::next(all.begin()); other != all.end(); ++other) {
    EXPECT_TRUE(absl::IsDataLoss(vaults_.find(other->second, other->first)->verify(7)));
  }
}

TEST_P(Parity, a_keeper_without_memory_is_an_error_that_names_it) {
  const ShardDuties duties = ShardKeepers(nodes_, GetParam()).of(0);
  vaults_.full = {duties.parity_keepers.back()};
  generation([&](ShardCopier& replicas, Communicator& comm, Rank self) {
    std::vector<float> values = state_of(self, 1);
    const Status status = protect(replicas, self, 1, values);
    if (self == 0) {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_NE(status.message().find("rank " + std::to_string(duties.parity_keepers.back()) +
                                      " cannot keep parity of the shard of rank 0 (2800000 bytes)"),
                std::string::npos)
          << status;
      world_.interrupt();
    } else {
      EXPECT_TRUE(status.ok() || absl::IsAborted(status) || absl::IsResourceExhausted(status)) << status;
      stay(comm, self);
    }
  });
}

TEST_P(Parity, bytes_that_arrive_broken_make_no_block) {
  generation([&](ShardCopier& replicas, Communicator& comm, Rank self) {
    if (self == 1) {  // corrupted after it was written and before it is sent
      std::vector<float> values = state_of(1, 1);
      state::ShardVault vault = *vaults_.of(1, Rank{1}, values.size() * sizeof(float), 100'000);
      const auto space = *state::TensorSpace::create({{values.data(), values.size() * sizeof(float)}});
      ASSERT_TRUE(*vault.write(1, space, copy_, "text", [] { return false; }));
      vault.data(1)[vault.data_bytes() - 1] ^= std::byte{1};
    }
    std::vector<float> values = state_of(self, 1);
    const Status status = protect(replicas, self, 1, values);
    if (self == 1) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      world_.interrupt();
    } else {
      EXPECT_TRUE(status.ok() || absl::IsAborted(status) || absl::IsDataLoss(status)) << status;
      stay(comm, self);
    }
  });
  for (const auto& [block, keeper] : blocks()) {
    if (std::find(block.members.begin(), block.members.end(), 1u) != block.members.end()) {
      EXPECT_TRUE(vaults_.find(keeper, block)->versions().empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, Parity,
                         ::testing::Values(Protection{.data = 2, .parity = 2}, Protection{.data = 3, .parity = 1},
                                           Protection{.data = 1, .parity = 3}),
                         [](const auto& info) {
                           return std::to_string(info.param.data) + "and" + std::to_string(info.param.parity);
                         });

}  // namespace
}  // namespace keepstep::rank
