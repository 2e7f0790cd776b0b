#include "brain/membership/round.h"

#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

constexpr Identity kIdentity{1, 3};

// Ranks 0 and 1 on node 0, rank 2 on node 1; their workers are 10, 11, 12.
Round two_nodes() {
  Prepare prepare;
  prepare.identity = kIdentity;
  prepare.members = {{0, 10, 0}, {1, 11, 0}, {2, 12, 1}};
  return Round(prepare);
}

SealedWord word(Rank rank, WorkerId worker) { return {rank, worker, {kIdentity, 5, Vote::kYes, false}, {}}; }

TEST(Round, forms_once_and_only_when_it_was_activated) {
  Round round = two_nodes();
  EXPECT_FALSE(round.form());
  round.activate(Activate{kIdentity, 4, {0}, {1, 2}, false});
  EXPECT_TRUE(round.form());
  EXPECT_FALSE(round.form());
}

TEST(Round, takes_words_of_its_own_members_from_their_own_nodes) {
  Round round = two_nodes();
  round.activate(Activate{kIdentity, 4, {}, {}, false});
  round.seal({0, 1, 2});
  EXPECT_TRUE(round.take(Sealed{0, kIdentity, {word(0, 10), word(1, 99), word(2, 12), word(7, 10)}}));
  EXPECT_EQ(round.words().size(), 1u);  // not those of another worker, another node, or no rank
  EXPECT_TRUE(round.awaits_words());
  EXPECT_FALSE(round.take(Sealed{0, kIdentity, {word(1, 11)}})) << "the first answer of a node came before";
  EXPECT_FALSE(round.all_nodes_answered());
  EXPECT_TRUE(round.take(Sealed{1, kIdentity, {word(2, 12)}}));
  EXPECT_FALSE(round.awaits_words());
  EXPECT_TRUE(round.all_nodes_answered());
}

TEST(Round, before_it_is_activated_an_answer_is_enough_and_a_lost_node_answers_by_being_lost) {
  Round round = two_nodes();
  round.seal({0, 1, 2});
  round.take(Sealed{0, kIdentity, {}});
  round.await_no_longer(2);
  EXPECT_FALSE(round.awaits_words());
  round.lose(1);
  EXPECT_TRUE(round.all_nodes_answered());
}

TEST(Round, is_through_when_all_finished_or_exited) {
  Round round = two_nodes();
  round.ending().finish(0);
  round.ending().exit(0);  // after it had finished
  round.ending().finish(1);
  EXPECT_FALSE(round.all_through());
  EXPECT_FALSE(round.all_exited());
  round.ending().exit(2);
  EXPECT_TRUE(round.all_through());
}

}  // namespace
}  // namespace keepstep::brain
