// Receives that accept the first message from any sender.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;

TEST(AnySource, every_message_arrives_once_and_names_its_sender) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    TestWorld(4).run(mode, [](Communicator& comm, Rank self) {
      constexpr uint32_t kEach = 50;
      if (self != 1) {
        for (uint32_t i = 0; i < kEach; ++i) {
          const uint64_t value = self * 1000 + i;
          expect_done(comm, comm.send(kWorld, &value, sizeof value, 1, 7));
        }
        return;
      }
      std::vector<uint32_t> next(4);
      for (uint32_t i = 0; i < 3 * kEach; ++i) {
        uint64_t value = 0;
        const Completion done = finish(comm, comm.receive(kWorld, &value, sizeof value, kAnySource, 7));
        ASSERT_EQ(done.outcome, Outcome::kDone) << done.error;
        EXPECT_EQ(value, done.source * 1000 + next.at(done.source)++);  // of one sender: in order
      }
      EXPECT_THAT(next, testing::ElementsAre(kEach, 0, kEach, kEach));
    });
  }
}

TEST(AnySource, receives_take_messages_in_the_order_they_were_posted) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 0) {
      uint32_t go = 0;
      expect_done(comm, comm.receive(kWorld, &go, sizeof go, 1, 1));
      for (uint32_t value = 1; value <= 4; ++value) {
        expect_done(comm, comm.send(kWorld, &value, sizeof value, 1, 0));
      }
      return;
    }
    std::vector<uint32_t> values(4);
    std::vector<OpId> ops;
    for (size_t i = 0; i < values.size(); ++i) {
      ops.push_back(comm.receive(kWorld, &values[i], sizeof values[i], i % 2 == 0 ? kAnySource : Rank{0}, 0));
    }
    const uint32_t go = 1;  // all four are posted before the first message is sent
    expect_done(comm, comm.send(kWorld, &go, sizeof go, 0, 1));
    for (const OpId op : ops) {
      expect_done(comm, op);
    }
    EXPECT_THAT(values, testing::ElementsAre(1, 2, 3, 4));
  });
}

TEST(AnySource, the_source_is_a_rank_of_the_group) {
  TestWorld(4).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 0) {
      return;
    }
    const auto group = comm.create_group({3, 1, 2}, "part");
    ASSERT_TRUE(group.ok()) << group.status();
    uint32_t value = self;
    if (self == 2) {
      const Completion done = finish(comm, comm.receive(*group, &value, sizeof value, kAnySource, 0));
      EXPECT_EQ(done.source, 0U) << done.error;
      EXPECT_EQ(value, 3U);
    } else if (self == 3) {
      expect_done(comm, comm.send(*group, &value, sizeof value, 2, 0));
    }
  });
}

TEST(AnySource, runs_out_of_time_and_is_cut_short_by_an_interruption) {
  TestWorld world(2);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    uint64_t value = 7;
    const Completion late = finish(comm, comm.receive(kWorld, &value, sizeof value, kAnySource, 0, 1'000'000));
    EXPECT_EQ(late.outcome, Outcome::kFailed);
    EXPECT_THAT(late.error, HasSubstr("from any rank (tag 0)"));
    const OpId op = comm.receive(kWorld, &value, sizeof value, kAnySource, 0);
    world.signal();
    world.await(2);
    if (self == 0) {
      world.interrupt();
    }
    EXPECT_EQ(finish(comm, op).outcome, Outcome::kInterrupted);
    EXPECT_EQ(value, 0U);
  });
}

}  // namespace
}  // namespace keepstep::comm
