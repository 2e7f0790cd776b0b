#include "rank/shards/word_gather.h"

#include <gtest/gtest.h>

#include <functional>

#include "comm/test_world.h"
#include "rank/link/rank_generation.h"

namespace keepstep::rank {
namespace {

using comm::Communicator;
using comm::Mode;
using comm::Rank;
using comm::TestWorld;
using Lists = std::vector<std::vector<uint32_t>>;

void on_each_of_three(const std::function<void(WordGather&, Rank)>& run) {
  TestWorld world(3, comm::small_config());
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    WordGather gather(comm, 3, [&](comm::OpId op) { return status_of(comm.wait(op)); });
    run(gather, self);
  });
}

TEST(WordGather, each_hears_the_lists_of_all_however_long) {
  on_each_of_three([](WordGather& gather, Rank self) {
    const std::vector<uint32_t> mine(self == 1 ? 0 : 2 + self, 10 + self);
    const auto all = gather.gather(mine, 4);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(*all, (Lists{{10, 10}, {}, {12, 12, 12, 12}}));
    const auto none = gather.gather({}, 4);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ(*none, Lists(3));
  });
}

TEST(WordGather, a_list_that_is_too_long_is_refused_by_all) {
  on_each_of_three([](WordGather& gather, Rank self) {
    const auto all = gather.gather(std::vector<uint32_t>(self == 2 ? 5 : 0), 4);
    EXPECT_EQ(all.status(), absl::UnavailableError("a rank announced 5 words, 4 are the most"));
  });
}

}  // namespace
}  // namespace keepstep::rank
