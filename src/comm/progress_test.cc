// How a rank reports its progress: in words that its agent samples (docs/design/hangs.md).

#include "comm/progress.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

constexpr size_t kCount = 1 << 20;  // floats: 64 chunks of small_config()

// Runs `body` on all ranks of `world`. Returns CollectiveWords::moved of each.
template <typename Body>
std::vector<uint64_t> moved_by(TestWorld& world, Body body) {
  std::vector<CollectiveWords> words(world.size());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = world.communicator(rank, &words[rank]);
      body(*comm, rank);
    });
  }
  std::vector<uint64_t> moved;
  for (Rank rank = 0; rank < world.size(); ++rank) {
    threads[rank].join();
    moved.push_back(words[rank].moved.load());
  }
  return moved;
}

class ProgressWords : public testing::TestWithParam<std::string> {
 protected:
  // "01": two ranks on two nodes.
  static TestWorld world() {
    std::vector<uint32_t> nodes;
    for (const char node : GetParam()) {
      nodes.push_back(static_cast<uint32_t>(node - '0'));
    }
    return TestWorld(nodes.size(), small_config(), nodes);
  }
};

TEST_P(ProgressWords, each_chunk_of_one_large_all_reduce_is_seen) {
  TestWorld ranks = world();
  const std::vector<uint64_t> moved = moved_by(ranks, [](Communicator& comm, Rank) {
    std::vector<float> data(kCount, 1);
    expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(comm.collectives_entered(), 1u);
  });
  for (const uint64_t parts : moved) {
    EXPECT_GE(parts, kCount * sizeof(float) / small_config().slot_bytes / 8);
  }
}

TEST_P(ProgressWords, each_piece_of_one_long_message_is_seen) {
  TestWorld ranks = world();
  const std::vector<uint64_t> moved = moved_by(ranks, [&](Communicator& comm, Rank self) {
    std::vector<float> data(kCount, 1);
    const size_t bytes = data.size() * sizeof(float);
    const auto last = static_cast<Rank>(ranks.size() - 1);
    if (self == 0) {
      expect_done(comm, comm.send(kWorld, data.data(), bytes, last, 1));
    } else if (self == last) {
      expect_done(comm, comm.receive(kWorld, data.data(), bytes, 0, 1));
    }
  });
  const uint64_t rings = kCount * sizeof(float) / small_config().ring_bytes;
  EXPECT_GE(moved.front(), rings);
  EXPECT_GE(moved.back(), rings);
}

INSTANTIATE_TEST_SUITE_P(InOneNodeAndAcross, ProgressWords, testing::Values("00", "01", "0011"));

TEST(ProgressWords, who_waits_for_a_rank_that_does_not_come_moves_nothing) {
  TestWorld world(2);
  CollectiveWords words{};
  const auto first = world.communicator(0, &words);
  std::vector<float> data(kCount, 1);
  const OpId op = first->all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum, 20'000'000);
  EXPECT_EQ(finish(*first, op).outcome, Outcome::kFailed);
  EXPECT_EQ(words.entered.load(), 1u);
  EXPECT_EQ(words.moved.load(), 0u);
}

}  // namespace
}  // namespace keepstep::comm
