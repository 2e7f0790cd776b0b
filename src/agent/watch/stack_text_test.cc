#include "agent/watch/stack_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace keepstep::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const StackFrame kTrain{"train", "/home/me/train.py", 40};
const StackFrame kAllReduce{"all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
                            2};
const StackFrame kWrapper{"wrapper", "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83};
const StackFrame kWait{"wait", "/work/python/keepstep/torch/distributed/work.py", 9};

RankStacks rank(uint32_t number, std::vector<StackFrame> frames, uint64_t step = 118, std::string doing = "") {
  RankStacks each;
  each.facts = {number, number, step, std::move(doing)};
  each.stacks.pid = static_cast<pid_t>(100 + number);
  each.stacks.threads.push_back({"MainThread", 0, false, std::move(frames)});
  return each;
}

TEST(StackText, ranks_that_do_the_same_are_one_group_and_who_does_not_comes_first) {
  const std::vector<StackFrame> waiting = {kWait, kAllReduce, kWrapper, kTrain};
  const std::vector<StackFrame> loading = {
      {"__next__", "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 733}, kTrain};
  const std::vector<RankStacks> ranks = {rank(0, waiting), rank(1, waiting), rank(2, loading), rank(3, waiting)};
  const auto groups = group_stacks(ranks);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[0].members, ElementsAre(2));
  EXPECT_EQ(groups[0].headline,
            "rank 2 in __next__ (torch/utils/data/dataloader.py:733), called by train (train.py:40), step 118");
  EXPECT_THAT(groups[1].members, ElementsAre(0, 1, 3));
  EXPECT_EQ(groups[1].headline, "3 ranks (0, 1, 3) in all_reduce, called by train (train.py:40), step 118");
  EXPECT_THAT(stacks_as_text(ranks), StartsWith("rank 2 in __next__"));
  EXPECT_THAT(stacks_as_text(ranks),
              HasSubstr("[pid 100, 101, 103]\n    wait (keepstep/torch/distributed/work.py:9)\n"));
}

TEST(StackText, a_users_folder_may_have_our_name) {
  const StackFrame train{"train", "/home/me/keepstep/tests/jobs/train.py", 40};
  const auto groups = group_stacks({rank(0, {kWait, kAllReduce, kWrapper, train})});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].headline, "rank 0 in all_reduce, called by train (train.py:40), step 118");
}

TEST(StackText, what_the_job_knows_of_a_rank_is_said_and_tells_groups_apart) {
  const std::vector<StackFrame> same = {kWait, kTrain};
  const auto groups = group_stacks({rank(0, same, 118, "all_reduce #4711"), rank(1, same, 118, "all_reduce #4711"),
                                    rank(2, same, 118, "all_reduce #4710")});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].headline, "rank 2 in all_reduce #4710 of step 118");
  EXPECT_EQ(groups[1].headline, "2 ranks (0, 1) in all_reduce #4711 of step 118");
}

TEST(StackText, a_stopped_rank_one_without_stacks_and_a_spare_are_told) {
  RankStacks stopped = rank(1, {kTrain});
  stopped.stacks.state = 'T';
  RankStacks unknown = rank(2, {});
  unknown.stacks.threads.clear();
  unknown.stacks.error = "process 102 may not be read";
  RankStacks spare = rank(0, {kTrain}, 0);
  spare.facts.rank.reset();
  spare.facts.worker = 7;
  const std::string text = stacks_as_text({rank(0, {kTrain}), stopped, unknown, spare});
  EXPECT_THAT(text, HasSubstr("rank 1 is stopped in train (train.py:40), step 118"));
  EXPECT_THAT(text, HasSubstr("rank 2: no stacks: process 102 may not be read, step 118"));
  EXPECT_THAT(text, HasSubstr("worker without a rank 7 in train (train.py:40) [pid 100]"));
  EXPECT_LT(text.find("rank 2:"), text.find("worker without"));
}

TEST(StackText, what_py_spy_prints_is_read_with_the_main_thread_first) {
  const auto threads = parse_stacks(R"([
    {"pid": 5, "thread_id": 1, "thread_name": "loader", "os_thread_id": 6, "active": true, "owns_gil": true,
     "frames": [{"name": "f", "filename": "a.py", "line": 3, "locals": null}]},
    {"pid": 5, "thread_id": 2, "thread_name": null, "os_thread_id": 5, "active": false, "owns_gil": false,
     "frames": [{"name": "g", "filename": "b.py", "line": 4}, {"name": "h", "filename": "b.py", "line": 9}]}])",
                                    5);
  ASSERT_TRUE(threads.ok()) << threads.status();
  ASSERT_EQ(threads->size(), 2u);
  EXPECT_EQ(threads->front().os_id, 5);
  EXPECT_THAT(threads->front().frames, ElementsAre(StackFrame{"g", "b.py", 4}, StackFrame{"h", "b.py", 9}));
  EXPECT_TRUE(threads->back().holds_gil);
}

TEST(StackText, anything_else_is_refused) {
  for (const char* bad : {"", "null", "[]", "{}", "[1]", R"([{"frames": 3}])", "Error: no such process"}) {
    EXPECT_FALSE(parse_stacks(bad, 1).ok()) << bad;
  }
}

TEST(StackText, a_rank_survives_the_way_through_the_control_door) {
  RankStacks before = rank(3, {kWait, kTrain}, 7, "barrier #2");
  before.stacks.state = 'T';
  before.stacks.note = "a note";
  before.stacks.threads.push_back({"other", 55, true, {kAllReduce}});
  const RankStacks after = rank_stacks_from(to_json(before));
  EXPECT_EQ(stacks_as_text({after}), stacks_as_text({before}));
  EXPECT_EQ(after.facts.rank, 3u);
  EXPECT_EQ(after.stacks.threads[1].os_id, 55);
  EXPECT_THROW(rank_stacks_from(nlohmann::json::object()), nlohmann::json::exception);
}

}  // namespace
}  // namespace keepstep::agent
