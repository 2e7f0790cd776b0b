#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/group_table.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;

GroupId must_create(Communicator& comm, const std::vector<Rank>& members, const std::string& key) {
  const StatusOr<GroupId> group = comm.create_group(members, key);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.value_or(kWorld);
}

std::vector<float> sum_over(Communicator& comm, GroupId group, size_t count, float value) {
  std::vector<float> data(count, value);
  expect_done(comm, comm.all_reduce(group, data.data(), count, DataType::kFloat32, ReduceOp::kSum));
  return data;
}

TEST(Groups, a_group_adds_and_roots_in_the_order_its_members_were_given) {
  TestWorld(4).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 1) {
      return;  // not a member: does not call
    }
    const std::vector<Rank> members = {3, 0, 2};
    const GroupId group = must_create(comm, members, "odd");
    const float values[] = {1.0F, 0, 1e8F, -1e8F};
    for (const size_t count : {1, 30'000}) {
      const float expected = (values[3] + values[0]) + values[2];
      EXPECT_EQ(sum_over(comm, group, count, values[self]), std::vector<float>(count, expected));
    }
    uint32_t word = self;
    expect_done(comm, comm.broadcast(group, &word, sizeof(word), 0));
    EXPECT_EQ(word, 3U);
  });
}

TEST(Groups, groups_that_overlap_and_the_world_work_at_the_same_time) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    TestWorld(5).run(mode, [](Communicator& comm, Rank self) {
      const std::vector<std::vector<Rank>> lists = {{0, 1, 2, 3}, {4, 3, 2}, {0, 4}};
      std::vector<GroupId> groups;
      std::vector<size_t> sizes;
      for (size_t i = 0; i < lists.size(); ++i) {
        if (std::count(lists[i].begin(), lists[i].end(), self) > 0) {
          groups.push_back(must_create(comm, lists[i], "group " + std::to_string(i)));
          sizes.push_back(lists[i].size());
        }
      }
      groups.push_back(kWorld);
      sizes.push_back(5);
      constexpr size_t kCount = 9000;
      std::vector<std::vector<float>> data;
      std::vector<OpId> ops;
      for (size_t round = 0; round < 20; ++round) {
        for (size_t g = 0; g < groups.size(); ++g) {
          data.emplace_back(round % 2 == 0 ? kCount : 5, 1.0F);
        }
      }
      for (size_t i = 0; i < data.size(); ++i) {
        ops.push_back(comm.all_reduce(groups[i % groups.size()], data[i].data(), data[i].size(), DataType::kFloat32,
                                      ReduceOp::kSum));
      }
      for (size_t i = 0; i < data.size(); ++i) {
        expect_done(comm, ops[i]);
        EXPECT_EQ(data[i], std::vector<float>(data[i].size(), static_cast<float>(sizes[i % groups.size()])));
      }
    });
  }
}

TEST(Groups, a_released_place_is_used_again_also_for_the_same_key) {
  TestWorld(3).run(Mode::kProcesses, [](Communicator& comm, Rank) {
    for (int round = 0; round < 40; ++round) {
      const GroupId group = must_create(comm, {2, 0, 1}, round % 2 == 0 ? "same" : "other");
      EXPECT_EQ(sum_over(comm, group, 5000, 1.0F), std::vector<float>(5000, 3.0F)) << round;
      comm.release_group(group);
    }
  });
}

TEST(Groups, disjoint_groups_may_share_a_key) {
  TestWorld(4).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const GroupId group = must_create(comm, self < 2 ? std::vector<Rank>{0, 1} : std::vector<Rank>{2, 3}, "half");
    EXPECT_EQ(sum_over(comm, group, 1, static_cast<float>(self)), std::vector<float>{self < 2 ? 1.0F : 5.0F});
  });
}

TEST(Groups, too_many_groups_are_an_error_with_the_way_out) {
  TestWorld(1).run(Mode::kThreads, [](Communicator& comm, Rank) {
    std::vector<GroupId> groups;
    for (int i = 1; i < 4; ++i) {
      groups.push_back(must_create(comm, {0}, std::to_string(i)));
    }
    const auto refused = comm.create_group({0}, "one too many");
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("all 3 groups beside the world are in use"));
    comm.release_group(groups[1]);
    must_create(comm, {0}, "now there is room");
  });
}

TEST(Groups, members_that_name_different_ranks_are_told) {
  TestWorld world(3);
  const auto first = world.communicator(0);
  const auto second = world.communicator(1);
  must_create(*first, {0, 1, 2}, "tp");
  const auto refused = second->create_group({0, 1}, "tp");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("rank 1 gives group 'tp' the ranks [0, 1]"));
  EXPECT_FALSE(first->create_group({0, 7}, "outside").ok());
  EXPECT_FALSE(first->create_group({0, 0}, "twice").ok());
  EXPECT_FALSE(first->create_group({1, 2}, "not a member").ok());
  EXPECT_FALSE(first->create_group({}, "empty").ok());
}

TEST(Groups, a_released_group_is_not_known_any_more) {
  TestWorld(1).run(Mode::kThreads, [](Communicator& comm, Rank) {
    const GroupId group = must_create(comm, {0}, "short");
    comm.release_group(group);
    const Completion completion = finish(comm, comm.barrier(group));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, HasSubstr("was it released?"));
  });
}

// ---- errors that a group finds

TEST(Disagreement, is_told_on_all_ranks_with_both_sides_and_the_group_goes_on) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    TestWorld(4).run(mode, [](Communicator& comm, Rank self) {
      std::vector<float> data(30'000, 1.0F);
      expect_done(comm, comm.barrier(kWorld));
      const Completion completion = finish(
          comm, self == 2 ? comm.broadcast(kWorld, data.data(), 4000, 1)
                          : comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
      EXPECT_EQ(completion.outcome, Outcome::kFailed);
      EXPECT_THAT(completion.error, HasSubstr("#2 of group world: the ranks do not agree: ranks 0, 1, 3 called "
                                              "all_reduce (sum of 30000 x float32); rank 2 called "
                                              "broadcast (4000 bytes, root rank 1)"));
      EXPECT_EQ(sum_over(comm, kWorld, 1000, 1.0F), std::vector<float>(1000, 4.0F));
    });
  }
}

TEST(Disagreement, of_size_type_operation_and_root_is_found) {
  TestWorld(2).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    std::vector<float> data(100'000, 1.0F);
    const auto fails = [&](OpId op, const std::string& text) {
      const Completion completion = finish(comm, op);
      EXPECT_EQ(completion.outcome, Outcome::kFailed);
      EXPECT_THAT(completion.error, HasSubstr(text));
    };
    fails(comm.all_reduce(kWorld, data.data(), self == 0 ? 1 : 100'000, DataType::kFloat32, ReduceOp::kSum),
          "do not agree");
    fails(comm.all_reduce(kWorld, data.data(), 8, self == 0 ? DataType::kFloat32 : DataType::kInt32, ReduceOp::kSum),
          "int32");
    fails(comm.all_reduce(kWorld, data.data(), 8, DataType::kFloat32, self == 0 ? ReduceOp::kSum : ReduceOp::kMax),
          "max of");
    fails(comm.broadcast(kWorld, data.data(), 8, self), "root rank 1");
    expect_done(comm, comm.barrier(kWorld));
  });
}

TEST(Disagreement, on_all_to_all_sizes_names_the_pair) {
  TestWorld(3).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    std::vector<uint8_t> in(3 * 8);
    std::vector<uint8_t> out(3 * 8);
    const std::vector<size_t> sent(3, 8);
    const std::vector<size_t> expected = {8, self == 2 ? size_t{5} : size_t{8}, 8};
    const Completion completion =
        finish(comm, comm.all_to_all(kWorld, {in.data(), in.data() + 8, in.data() + 16}, sent,
                                     {out.data(), out.data() + 8, out.data() + 16}, expected));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, HasSubstr("rank 1 sends 8 bytes to rank 2, which expects 5"));
    expect_done(comm, comm.barrier(kWorld));
  });
}

TEST(Disagreement, a_call_that_one_rank_refuses_fails_on_all) {
  TestWorld(3).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    int32_t word = 1;
    const Completion bad_root = finish(comm, comm.broadcast(kWorld, &word, 4, self == 1 ? 9 : 0));
    EXPECT_EQ(bad_root.outcome, Outcome::kFailed);
    EXPECT_THAT(bad_root.error, HasSubstr(self == 1 ? "root 9 is not in the group" : "rank 1 called a call that was"));
    const Completion average = finish(comm, comm.all_reduce(kWorld, &word, 1, DataType::kBool, ReduceOp::kAverage));
    EXPECT_EQ(average.outcome, Outcome::kFailed);
    EXPECT_THAT(average.error, HasSubstr("avg is not defined for bool"));
    const Completion null = finish(comm, comm.all_reduce(kWorld, nullptr, 1, DataType::kInt32, ReduceOp::kSum));
    EXPECT_THAT(null.error, HasSubstr("buffer 0 is null"));
    expect_done(comm, comm.all_reduce(kWorld, &word, 1, DataType::kInt32, ReduceOp::kSum));
    EXPECT_EQ(word, 3);
  });
}

TEST(Timeout, names_who_did_not_arrive_and_ends_the_group_for_all) {
  TestWorld world(4);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    float value = 1.0F;
    if (self >= 2) {
      world.await(1);  // until rank 0 gave up
    }
    const OpId op = comm.all_reduce(kWorld, &value, 1, DataType::kFloat32, ReduceOp::kSum, self == 0 ? 50'000'000 : -1);
    const Completion completion = finish(comm, op);
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    if (self == 0) {
      EXPECT_THAT(completion.error, HasSubstr("all_reduce #1 of group world: rank"));
      EXPECT_THAT(completion.error, HasSubstr("2, 3 did not arrive within 0.05 s"));
      world.signal();
    } else {
      EXPECT_THAT(completion.error, HasSubstr("rank 0 gave up waiting"));
    }
    const Completion next = finish(comm, comm.barrier(kWorld));
    EXPECT_EQ(next.outcome, Outcome::kFailed);
    EXPECT_THAT(next.error, HasSubstr("rank 0 gave up waiting"));
  });
}

}  // namespace
}  // namespace keepstep::comm
