#include "brain/membership/roster.h"

#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

using std::chrono::seconds;

TEST(Roster, a_spare_is_free_until_a_rank_counts_on_it_or_it_is_being_killed) {
  Roster roster;
  const WorkerId first = roster.add(4, {});
  const WorkerId second = roster.add(4, {});
  roster.at(first).status = Roster::Status::kParked;
  roster.at(second).status = Roster::Status::kParked;
  EXPECT_EQ(roster.free(4, Roster::Status::kParked), first);
  roster.take(first, 0);
  EXPECT_EQ(roster.free(4, Roster::Status::kParked), second);
  roster.at(second).killed_at = seconds(1);
  EXPECT_EQ(roster.free(4, Roster::Status::kParked), kNoWorker);
  EXPECT_EQ(roster.free(5, Roster::Status::kParked), kNoWorker);
  EXPECT_EQ(roster.spares_on(4), 1u);
  EXPECT_EQ(roster.parked_on(4), 0u);
}

TEST(Roster, whoever_is_due_comes_once_in_the_order_of_time_and_the_forgotten_do_not) {
  Roster roster;
  const WorkerId early = roster.add(0, {});
  const WorkerId late = roster.add(0, {});
  const WorkerId forgotten = roster.add(0, {});
  roster.look_again(late, seconds(3));
  roster.look_again(early, seconds(9));
  roster.look_again(early, seconds(2));  // the earliest one wins
  roster.look_again(early, seconds(5));
  roster.look_again(forgotten, seconds(1));
  roster.retire(forgotten);
  EXPECT_EQ(roster.forget_the_gone([](WorkerId, const Roster::Worker&) { return false; }),
            std::vector<WorkerId>{forgotten});
  EXPECT_EQ(roster.next_due(seconds(2)), early);
  EXPECT_EQ(roster.next_due(seconds(2)), kNoWorker);
  EXPECT_EQ(roster.next_due(seconds(3)), late);
  EXPECT_EQ(roster.next_due(seconds(99)), kNoWorker);
}

TEST(Roster, an_exit_that_is_waited_for_keeps_its_worker_until_its_node_is_lost) {
  Roster roster;
  const WorkerId id = roster.add(2, {});
  roster.retire(id);
  roster.await_exit(id);
  EXPECT_TRUE(roster.forget_the_gone([](WorkerId, const Roster::Worker&) { return false; }).empty());
  EXPECT_TRUE(roster.awaits_exits());
  EXPECT_TRUE(roster.lose(2).empty()) << "it did not live any more";
  EXPECT_FALSE(roster.awaits_exits());
}

}  // namespace
}  // namespace keepstep::brain
