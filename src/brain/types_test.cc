#include "brain/types.h"

#include <gtest/gtest.h>

#include <random>

namespace keepstep::brain {
namespace {

TEST(StepWords, survive_packing_and_unpacking) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 10000; ++round) {
    const StepWord word{{static_cast<uint32_t>(random() % 512), static_cast<uint32_t>(random() % (1 << 20))},
                        random() % (uint64_t{1} << 32),
                        static_cast<Vote>(random() % 3),
                        random() % 2 == 0};
    EXPECT_EQ(unpack_step_word(pack(word)), word);
  }
}

TEST(StepWords, keep_their_extremes_apart) {
  const StepWord largest{{511, (1 << 20) - 1}, 0xffff'ffff, Vote::kDecided, true};
  EXPECT_EQ(unpack_step_word(pack(largest)), largest);
  EXPECT_EQ(unpack_step_word(0), StepWord{});
  EXPECT_EQ(pack(StepWord{}), 0u);
}

TEST(StepWords, are_sealed_by_one_bit_that_changes_nothing_else) {
  StepWord word{{1, 4}, 118, Vote::kYes, false};
  const uint64_t bits = pack(word) | kSealedBit;
  word.sealed = true;
  EXPECT_EQ(unpack_step_word(bits), word);
}

TEST(StepWords, with_a_vote_that_does_not_exist_prove_no_vote) {
  EXPECT_EQ(unpack_step_word(uint64_t{3} << 61 | 7).vote, Vote::kOpen);
}

TEST(StepWordsDeathTest, that_do_not_fit_are_refused) {
  EXPECT_DEATH(pack(StepWord{{512, 0}, 0}), "term");
  EXPECT_DEATH(pack(StepWord{{0, 1 << 20}, 0}), "generation");
  EXPECT_DEATH(pack(StepWord{{0, 0}, uint64_t{1} << 32}), "step");
  EXPECT_DEATH(pack(StateWord{StateKind::kClean, uint64_t{1} << 62}), "version");
}

TEST(StateWords, survive_packing_and_unpacking) {
  for (const StateKind kind : {StateKind::kEmpty, StateKind::kHydrating, StateKind::kClean, StateKind::kUpdating}) {
    for (const Version version : {Version{0}, Version{118}, (Version{1} << 62) - 1}) {
      EXPECT_EQ(unpack_state_word(pack(StateWord{kind, version})), (StateWord{kind, version}));
    }
  }
  EXPECT_EQ(unpack_state_word(0), StateWord{}) << "fresh shared memory is an empty state";
}

TEST(Identities, are_compared_by_term_then_generation) {
  EXPECT_LT((Identity{1, 9}), (Identity{2, 0}));
  EXPECT_LT((Identity{1, 4}), (Identity{1, 5}));
}

TEST(Names, are_the_words_of_the_design) {
  EXPECT_STREQ(name(Vote::kOpen), "open");
  EXPECT_STREQ(name(Vote::kYes), "yes");
  EXPECT_STREQ(name(Vote::kDecided), "decided");
  EXPECT_STREQ(name(StateKind::kEmpty), "empty");
  EXPECT_STREQ(name(StateKind::kHydrating), "hydrating");
  EXPECT_STREQ(name(StateKind::kClean), "clean");
  EXPECT_STREQ(name(StateKind::kUpdating), "updating");
}

}  // namespace
}  // namespace keepstep::brain
