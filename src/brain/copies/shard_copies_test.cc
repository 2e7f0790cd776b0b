#include "brain/copies/shard_copies.h"

#include <gtest/gtest.h>

#include <random>

namespace keepstep::brain {
namespace {

constexpr Identity kNow{1, 4};

SealedWord rank_at(Rank rank, Step step, Vote vote, StateKind kind, Version version) {
  return {rank, rank, StepWord{kNow, step, vote, true}, StateWord{kind, version}};
}

std::set<ShardCopy> copies_of(Version version, std::initializer_list<Rank> ranks) {
  std::set<ShardCopy> copies;
  for (const Rank rank : ranks) {
    copies.insert({rank, version});
  }
  return copies;
}

TEST(ShardCopies, TheDeadRanksCopyIsEnoughForTheVersionItHad) {
  const Verdict verdict{7, false, "rank 1 had not voted on step 8"};
  const std::vector<SealedWord> living = {rank_at(1, 8, Vote::kOpen, StateKind::kClean, 7)};
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, copies_of(7, {0, 1}), {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 7);
  EXPECT_EQ(found->because, verdict.because);
}

TEST(ShardCopies, AStepThatOnlyTheDeadRankCouldApplyIsRedone) {
  // All had voted on 8, so the verdict is forward; but the shard that rank 0 would have got was lost with it.
  const Verdict verdict{8, true, "every survivor had voted on step 8"};
  const std::vector<SealedWord> living = {rank_at(1, 8, Vote::kYes, StateKind::kClean, 7)};
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, copies_of(7, {0, 1}), {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 7);
  EXPECT_FALSE(found->forward);
  EXPECT_EQ(found->because, "no copy of the shard of rank 0 at version 8 is left; version 7 is whole");
}

TEST(ShardCopies, ADeathBeforeTheCopyGoesBackOneStepAndSurvivorsToTheirOwnCopies) {
  const Verdict verdict{8, false, "rank 1 had not voted on step 9"};
  const std::vector<SealedWord> living = {rank_at(1, 9, Vote::kOpen, StateKind::kClean, 8)};
  std::set<ShardCopy> copies = copies_of(7, {0, 1});
  copies.insert({1, 8});
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, copies, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 7);
}

TEST(ShardCopies, WithoutADeadRankTheVerdictStands) {
  const Verdict verdict{8, true, "rank 0 had recorded step 8 as decided"};
  const std::vector<SealedWord> living = {rank_at(0, 8, Vote::kDecided, StateKind::kUpdating, 7),
                                          rank_at(1, 8, Vote::kYes, StateKind::kClean, 7)};
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, {}, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 8);
  EXPECT_TRUE(found->forward);
}

TEST(ShardCopies, ARankWhoseUpdateFailedNeedsItsCopy) {
  const Verdict verdict{8, true, "rank 1 had recorded step 8 as decided"};
  const std::vector<SealedWord> living = {rank_at(0, 8, Vote::kDecided, StateKind::kEmpty, 0),
                                          rank_at(1, 8, Vote::kDecided, StateKind::kClean, 8)};
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, copies_of(7, {0, 1}), {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 7);
}

// communicates=True: the update comes before the vote.
TEST(ShardCopies, ARankInAnUpdateThatDoesNotCountPutsBackWhatItHad) {
  const Verdict redo{7, false, "rank 0 had not voted on step 8"};
  const std::vector<SealedWord> living = {rank_at(0, 8, Vote::kOpen, StateKind::kUpdating, 7),
                                          rank_at(1, 8, Vote::kYes, StateKind::kUpdating, 7)};
  const auto found = newest_whole(redo, kNow, 0, {0, 2}, living, {}, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 7);
  // It counts after all: ranks that voted keep it, ranks that had not voted go back.
  const Verdict forward{8, true, "rank 2 was past step 8 already"};
  EXPECT_FALSE(newest_whole(forward, kNow, 0, {0, 2}, living, copies_of(6, {0, 1}), {}, nullptr)->forward);
  const std::vector<SealedWord> voted = {rank_at(0, 8, Vote::kYes, StateKind::kUpdating, 7), living[1]};
  EXPECT_EQ(newest_whole(forward, kNow, 0, {0, 2}, voted, {}, {}, nullptr)->version, 8u);
}

TEST(ShardCopies, AnUpdateThatAnEarlierVerdictToldOfEndsWhateverComes) {
  const Identity before{1, 3};
  const Verdict redo{8, false, "rank 0 had not voted on step 9"};
  std::vector<SealedWord> living = {rank_at(0, 9, Vote::kOpen, StateKind::kClean, 8),
                                    rank_at(1, 8, Vote::kYes, StateKind::kUpdating, 7)};
  living[1].word.identity = before;
  const auto found = newest_whole(redo, kNow, 0, {0, 2}, living, {}, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 8u);
}

TEST(ShardCopies, AllDeadGoesOnFromWhatTheAgentsHold) {
  const Verdict verdict{8, false, "no survivor is left"};
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, {}, copies_of(8, {0, 1}), {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 8);
}

TEST(ShardCopies, BeforeTheFirstCopyEveryProcessBuildsVersionZero) {
  const Verdict verdict{0, false, "rank 1 had not voted on step 1"};
  const std::vector<SealedWord> living = {rank_at(1, 1, Vote::kOpen, StateKind::kClean, 0)};
  EXPECT_TRUE(newest_whole(verdict, kNow, 0, {0, 2}, living, {}, {}, nullptr));
}

TEST(ShardCopies, SaysWhoseShardIsGone) {
  const Verdict verdict{8, false, "rank 1 had not voted on step 9"};
  const std::vector<SealedWord> living = {rank_at(1, 9, Vote::kOpen, StateKind::kClean, 8)};
  std::string missing;
  EXPECT_FALSE(newest_whole(verdict, kNow, 0, {0, 2}, living, copies_of(7, {1}), {}, &missing));
  EXPECT_EQ(missing, "no copy of the shard of rank 0 at version 8 is left");
}

// Ranks that play steps, copies and deaths by the rules of sharded.md. With a copy of each shard on two nodes and one
// node lost, at any instant, no more steps are redone than lie between two copies.
TEST(ShardCopies, OneLostNodeCostsAtMostTheStepsBetweenCopiesAtAnyInstant) {
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const Rank world = 2 + below(5);
    const Rank nodes = 2;
    const Version every = seed % 4 == 0 ? 1 + below(7) : 1;
    const Version begin = 10;  // its copy and the previous one are whole
    const auto due = [&](Version version) { return version == begin || version % every == 0; };
    struct Process {
      Version state = begin;    // committed and applied
      Vote vote = Vote::kOpen;  // on state + 1
      std::set<Version> here{9}, there{9};
    };
    // A copy replaces the older one.
    const auto put = [](std::set<Version>& slots, Version version) {
      slots.insert(version);
      if (slots.size() > 2) {
        slots.erase(slots.begin());
      }
    };
    std::vector<Process> ranks(world);
    uint32_t back = 0;
    for (uint32_t event = below(60 * static_cast<uint32_t>(every)); event > 0; --event) {
      Process& rank = ranks[below(world)];
      const Step next = rank.state + 1;
      switch (below(4)) {
        case 0:
          if (due(rank.state)) {
            put(rank.here, rank.state);
          }
          break;
        case 1:
          if (due(rank.state) && rank.here.contains(rank.state)) {
            put(rank.there, rank.state);
          }
          break;
        case 2:
          if (rank.vote == Vote::kOpen && (!due(rank.state) || rank.there.contains(rank.state))) {
            rank.vote = Vote::kYes;
          }
          break;
        default: {
          const bool all = std::all_of(ranks.begin(), ranks.end(), [&](const Process& each) {
            return each.state >= next || (each.state == next - 1 && each.vote == Vote::kYes);
          });
          if (all && rank.vote == Vote::kYes) {
            rank.state = next;
            rank.vote = Vote::kOpen;
            if (due(next)) {  // copying starts by removing the older copy
              for (std::set<Version>* const slots : {&rank.here, &rank.there}) {
                if (below(2) == 0 && slots->size() > 1) {
                  slots->erase(slots->begin());
                  ++back;
                }
              }
            }
          }
        }
      }
    }
    const Rank lost = below(nodes);  // ranks r with r % nodes == lost, and the copies there
    std::vector<SealedWord> living;
    std::set<ShardCopy> copies;
    Version committed = 0;
    for (Rank rank = 0; rank < world; ++rank) {
      const Process& each = ranks[rank];
      committed = std::max(committed, each.state);
      if (rank % nodes != lost) {
        living.push_back(rank_at(rank, each.state + 1, each.vote, StateKind::kClean, each.state));
      }
      for (const Version version : rank % nodes != lost ? each.here : each.there) {
        copies.insert({rank, version});
      }
    }
    const Verdict verdict = decide(kNow, 10, living, true);
    const auto found = newest_whole(verdict, kNow, 0, {0, world}, living, copies, {}, nullptr);
    ASSERT_TRUE(found) << "seed " << seed << ", " << back << " slots open";
    ASSERT_GE(found->version + every, committed) << "seed " << seed;
    ASSERT_LE(found->version, verdict.version) << "seed " << seed;
  }
}

TEST(ShardCopies, WhereCopiesAreMadeOfSomeVersionsOnlyTheNewestWholeOneIsFound) {
  const Verdict verdict{17, false, "rank 1 had not voted on step 18"};
  const std::vector<SealedWord> living = {rank_at(1, 18, Vote::kOpen, StateKind::kClean, 17)};
  std::set<ShardCopy> copies = copies_of(8, {0, 1});
  copies.merge(copies_of(12, {0, 1}));
  copies.insert({1, 16});
  const auto found = newest_whole(verdict, kNow, 0, {0, 2}, living, copies, {}, nullptr);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 12);
  EXPECT_EQ(found->because, "no copy of the shard of rank 0 at version 17 is left; version 12 is whole");
  // No copy is more than two versions old: anything older is from another time.
  copies.erase({0, 12});
  EXPECT_FALSE(newest_whole(verdict, kNow, 0, {0, 2}, living, copies, {}, nullptr));
}

}  // namespace
}  // namespace keepstep::brain
