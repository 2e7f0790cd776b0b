// Groups do not wait for each other: each rank may run their collectives in its own order, from several threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "comm/progress.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;

constexpr int64_t kLimitNs = 20'000'000'000;  // operations that must not wait for each other fail if they do
constexpr size_t kLarge = 40'000;             // floats: more than two chunks of a group

GroupId must_create(Communicator& comm, const std::string& key) {
  const StatusOr<GroupId> group = comm.create_group({0, 1}, key);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.value_or(kWorld);
}

class ConcurrentGroups : public testing::TestWithParam<std::string> {
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
INSTANTIATE_TEST_SUITE_P(OnOneNodeAndAcross, ConcurrentGroups, testing::Values("00", "01"));

// Rank 0 submits `a`, then `b`; rank 1 waits for `b` before it submits `a`.
TEST_P(ConcurrentGroups, are_carried_out_in_another_order_on_each_rank) {
  for (const size_t count : {size_t{1}, kLarge}) {
    world().run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
      const GroupId a = must_create(comm, "a");
      const GroupId b = must_create(comm, "b");
      std::vector<float> data_a(count, 1.0F);
      std::vector<float> data_b(count, 2.0F);
      const auto add = [&](GroupId group, std::vector<float>& data) {
        return comm.all_reduce(group, data.data(), count, DataType::kFloat32, ReduceOp::kSum, kLimitNs);
      };
      if (self == 0) {
        const OpId first = add(a, data_a);
        expect_done(comm, add(b, data_b));
        expect_done(comm, first);
      } else {
        expect_done(comm, add(b, data_b));
        expect_done(comm, add(a, data_a));
      }
      EXPECT_EQ(data_a, std::vector<float>(count, 2.0F));
      EXPECT_EQ(data_b, std::vector<float>(count, 4.0F));
    });
  }
}

// Beside the world's group, and although one rank creates its groups in another order.
TEST_P(ConcurrentGroups, work_from_a_thread_each) {
  world().run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const std::string first = self == 0 ? "a" : "b";
    const std::string second = self == 0 ? "b" : "a";
    const GroupId one = must_create(comm, first);
    const GroupId two = must_create(comm, second);
    const GroupId groups[] = {kWorld, self == 0 ? one : two, self == 0 ? two : one};
    std::vector<std::thread> threads;
    for (size_t g = 0; g < std::size(groups); ++g) {
      threads.emplace_back([&comm, group = groups[g], g, self] {
        for (int round = 0; round < 60; ++round) {
          const size_t count = round % 3 == 0 ? kLarge : 7;
          std::vector<float> data(count, static_cast<float>(g + 1));
          expect_done(comm, comm.all_reduce(group, data.data(), count, DataType::kFloat32, ReduceOp::kSum, kLimitNs));
          EXPECT_EQ(data, std::vector<float>(count, 2 * static_cast<float>(g + 1))) << "group " << g;
          uint64_t word = self == 1 ? 100 * g + static_cast<uint64_t>(round) : 0;
          expect_done(comm, comm.broadcast(group, &word, sizeof word, 1, kLimitNs));
          EXPECT_EQ(word, 100 * g + static_cast<uint64_t>(round));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

TEST_P(ConcurrentGroups, one_that_ran_out_of_time_leaves_the_others_alone) {
  world().run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const GroupId stuck = must_create(comm, "stuck");
    const GroupId fine = must_create(comm, "fine");
    std::vector<float> data(kLarge, 1.0F);
    const OpId waits = self == 0 ? comm.barrier(stuck, 300'000'000) : 0;  // rank 1 never comes
    for (int round = 0; round < 20; ++round) {
      expect_done(comm, comm.all_reduce(fine, data.data(), kLarge, DataType::kFloat32, ReduceOp::kSum, kLimitNs));
    }
    if (self == 0) {
      const Completion completion = finish(comm, waits);
      EXPECT_EQ(completion.outcome, Outcome::kFailed);
      EXPECT_THAT(completion.error, HasSubstr("rank 1 did not arrive within 0.3 s"));
    }
    expect_done(comm, comm.all_reduce(fine, data.data(), kLarge, DataType::kFloat32, ReduceOp::kSum, kLimitNs));
  });
}

TEST_P(ConcurrentGroups, all_end_when_a_rank_is_killed_in_the_middle) {
  TestWorld ranks = world();
  const auto body = [&](Communicator& comm, Rank) {
    const GroupId groups[] = {kWorld, must_create(comm, "a"), must_create(comm, "b")};
    std::vector<std::thread> threads;
    for (const GroupId group : groups) {
      threads.emplace_back([&comm, &ranks, group] {
        std::vector<float> data(kLarge, 1.0F);
        while (true) {
          const Completion completion =
              finish(comm, comm.all_reduce(group, data.data(), kLarge, DataType::kFloat32, ReduceOp::kSum));
          if (completion.outcome != Outcome::kDone) {
            EXPECT_EQ(completion.outcome, Outcome::kInterrupted) << completion.error;
            return;
          }
          ranks.signal();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
  const pid_t survivor = ranks.fork_rank(0, body);
  const pid_t victim = ranks.fork_rank(1, body);
  ranks.await(50);
  kill(victim, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(TestWorld::status_of(victim)));
  ranks.interrupt();
  EXPECT_EQ(TestWorld::status_of(survivor), 0);
}

// Releasing a group ends its links. Another group then gets its place, and the thread that serves it.
TEST_P(ConcurrentGroups, give_their_places_back_while_others_work) {
  world().run(Mode::kProcesses, [](Communicator& comm, Rank) {
    std::atomic<bool> over = false;
    const GroupId steady = must_create(comm, "steady");
    std::thread other([&] {
      for (int round = 0; round < 200; ++round) {
        float value = 1.0F;
        expect_done(comm, comm.all_reduce(steady, &value, 1, DataType::kFloat32, ReduceOp::kSum, kLimitNs));
      }
      over = true;
    });
    for (int round = 0; round < 30; ++round) {
      const GroupId group = must_create(comm, "short");
      std::vector<float> data(kLarge, 1.0F);
      expect_done(comm, comm.all_reduce(group, data.data(), kLarge, DataType::kFloat32, ReduceOp::kSum, kLimitNs));
      EXPECT_EQ(data.back(), 2.0F);
      comm.release_group(group);
    }
    other.join();
    EXPECT_TRUE(over);
  });
}

// The agent looks for the rank that is missing in any of them.
TEST(ConcurrentGroupsWords, name_the_members_of_all_that_are_under_way) {
  TestWorld world(3);
  CollectiveWords words{};
  const auto comm = world.communicator(0, &words);
  const StatusOr<GroupId> pair = comm->create_group({0, 2}, "pair");
  ASSERT_TRUE(pair.ok());
  const OpId all = comm->barrier(kWorld);
  while (words.entered.load() < 1) {
    std::this_thread::yield();
  }
  const OpId two = comm->barrier(*pair);
  while (words.entered.load() < 2) {
    std::this_thread::yield();
  }
  EXPECT_EQ(words.world.load(), 1U) << "the world's is not over";
  EXPECT_EQ(words.members.load(), 0b111U);
  EXPECT_EQ(words.left.load(), 0U);
  EXPECT_EQ(words.entered_world.load(), 1U);
  world.interrupt();
  EXPECT_EQ(finish(*comm, all).outcome, Outcome::kInterrupted);
  EXPECT_EQ(finish(*comm, two).outcome, Outcome::kInterrupted);
  EXPECT_EQ(words.left.load(), 2U);
}

}  // namespace
}  // namespace keepstep::comm
