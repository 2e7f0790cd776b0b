#include "brain/copies/parity_rebuild.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "brain/copies/parity_placement.h"
#include "brain/copies/placement_testing.h"
#include "brain/copies/shard_copies.h"

namespace keepstep::brain {
namespace {

using Source = Rebuild::Source;

TEST(ParityRebuild, TakesShardsFirstAndAsManyBlocksAsTheGroupHasMembers) {
  const std::map<ParityBlock, Rank> parity = {{{{0, 4, 2}, 0}, 1}, {{{0, 4, 2}, 1}, 3}, {{{1, 3}, 0}, 0}};
  const auto one = plan_rebuild(4, {{0, 0}, {2, 7}}, parity);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->members, (std::vector<Rank>{0, 4, 2}));
  EXPECT_EQ(one->sources, (std::vector<Source>{{0, 0}, {2, 7}, {3, 1}}));
  const auto two = plan_rebuild(4, {{2, 7}}, parity);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->sources, (std::vector<Source>{{2, 7}, {3, 1}, {4, 3}}));
  EXPECT_FALSE(plan_rebuild(4, {{1, 1}, {3, 3}}, parity));
  EXPECT_FALSE(plan_rebuild(5, {{0, 0}, {2, 7}}, parity)) << "it is a member of no group";
}

TEST(ParityRebuild, BlocksOfAnotherPlacementAreNotMixedIn) {
  // The same ranks in another order have another code.
  const std::map<ParityBlock, Rank> parity = {{{{0, 1}, 0}, 2}, {{{1, 0}, 1}, 3}};
  EXPECT_FALSE(plan_rebuild(0, {}, parity));
  const auto found = plan_rebuild(0, {{1, 1}}, parity);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->members, (std::vector<Rank>{0, 1}));
  EXPECT_EQ(found->sources, (std::vector<Source>{{1, 1}, {2, 2}}));
}

TEST(ParityRebuild, OnlyBlocksOfACodeArePossible) {
  EXPECT_TRUE(is_possible({{3}, 253}));
  EXPECT_FALSE(is_possible({{3}, 254}));
  EXPECT_FALSE(is_possible({{}, 0}));
  EXPECT_FALSE(is_possible({{3, 3}, 0}));
  EXPECT_FALSE(is_possible({std::vector<Rank>(255), 0}));
}

TEST(ParityRebuild, AVersionIsWholeWhileEachGroupHasAsManyBlocksAsMembers) {
  const Identity now{1, 4};
  const Verdict verdict{8, false, "no survivor is left"};
  const ParityBlock first{{0, 1}, 0}, second{{0, 1}, 1};
  const auto whole = [&](const std::set<ShardCopy>& copies, const std::set<ParityCopy>& parity, std::string* missing) {
    const auto found = newest_whole(verdict, now, 0, {0, 2}, {}, copies, parity, missing);
    return found ? found->version : 0;
  };
  EXPECT_EQ(whole({{0, 8}}, {{first, 8}}, nullptr), 8);
  EXPECT_EQ(whole({}, {{first, 8}, {second, 8}}, nullptr), 8);
  EXPECT_EQ(whole({{0, 8}, {0, 7}}, {{first, 7}, {second, 7}}, nullptr), 7);
  std::string missing;
  EXPECT_EQ(whole({{1, 8}, {0, 7}}, {{first, 7}}, &missing), 7);
  EXPECT_EQ(whole({}, {{first, 8}, {second, 7}}, &missing), 0);
  EXPECT_EQ(missing, "no copy of the shard of rank 0 at version 8 is left, nor enough of its parity group");
}

// Ranks that play steps, copies to their own node, parity and deaths by the rules of sharded.md, on any topology. Up to
// m domains are lost at any instant: at most one step is redone.
class Schedule {
 public:
  Schedule(uint64_t seed, std::vector<Seat> seats, const ParityPlacement& placement)
      : random_(seed), seats_(std::move(seats)), placement_(placement), ranks_(seats_.size()) {
    for (const ParityGroup& group : placement_.groups) {
      for (uint32_t row = 0; row < group.keepers.size(); ++row) {
        rows_[{group.members, row}] = {9};
      }
    }
  }

  void play(uint64_t events) {
    for (; events > 0; --events) {
      const auto rank = static_cast<Rank>(random_() % ranks_.size());
      switch (random_() % 8) {
        case 0:
        case 1:
          copy(ranks_[rank]);
          break;
        case 2:
        case 3:
        case 4:
          encode(rank);
          break;
        case 5:
        case 6:
          vote(rank);
          break;
        default:
          commit(rank);
      }
    }
  }

  Version committed() const {
    return std::max_element(ranks_.begin(), ranks_.end(), [](auto& a, auto& b) { return a.state < b.state; })->state;
  }

  std::optional<Verdict> lose(const std::set<uint32_t>& domains) const {
    std::vector<SealedWord> living;
    std::set<ShardCopy> copies;
    std::set<ParityCopy> parity;
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const Process& each = ranks_[rank];
      if (!domains.contains(seats_[rank].domain)) {
        living.push_back(
            {rank, rank, StepWord{kNow, each.state + 1, each.vote, true}, StateWord{StateKind::kClean, each.state}});
        for (const Version version : each.here) {
          copies.insert({rank, version});
        }
      }
    }
    for (const ParityGroup& group : placement_.groups) {
      for (uint32_t row = 0; row < group.keepers.size(); ++row) {
        if (!domains.contains(seats_[group.keepers[row]].domain)) {
          for (const Version version : rows_.at({group.members, row})) {
            parity.insert({{group.members, row}, version});
          }
        }
      }
    }
    const Verdict verdict = decide(kNow, 10, living, true);
    return newest_whole(verdict, kNow, 0, {0, static_cast<Rank>(ranks_.size())}, living, copies, parity, nullptr);
  }

 private:
  static constexpr Identity kNow{1, 4};
  struct Process {
    Version state = 10;       // committed and applied
    Vote vote = Vote::kOpen;  // on state + 1
    std::set<Version> here{9};
  };

  // An old version is removed before the next but one is made, whatever happens in between.
  void put(std::set<Version>& slots, Version version) {
    slots.erase(version - 2);
    if (random_() % 2 == 0) {
      slots.insert(version);
    }
  }
  void copy(Process& rank) {
    if (!rank.here.contains(rank.state)) {
      put(rank.here, rank.state);
    }
  }
  void encode(Rank of) {
    const ParityGroup& group = placement_.groups[placement_.group_of[of]];
    const Version version = ranks_[of].state;
    if (std::all_of(group.members.begin(), group.members.end(),
                    [&](Rank member) { return ranks_[member].here.contains(version); })) {
      std::set<Version>& row = rows_[{group.members, static_cast<uint32_t>(random_() % group.keepers.size())}];
      if (!row.contains(version)) {
        put(row, version);
      }
    }
  }
  void vote(Rank of) {
    const ParityGroup& group = placement_.groups[placement_.group_of[of]];
    Process& rank = ranks_[of];
    bool safe = rank.vote == Vote::kOpen && rank.here.contains(rank.state);
    for (uint32_t row = 0; row < group.keepers.size(); ++row) {
      safe = safe && rows_[{group.members, row}].contains(rank.state);
    }
    if (safe) {
      rank.vote = Vote::kYes;
    }
  }
  void commit(Rank of) {
    Process& rank = ranks_[of];
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [&](const Process& each) {
      return each.state > rank.state || (each.state == rank.state && each.vote == Vote::kYes);
    });
    if (all && rank.vote == Vote::kYes) {
      ++rank.state;
      rank.vote = Vote::kOpen;
    }
  }

  std::mt19937_64 random_;
  const std::vector<Seat> seats_;
  const ParityPlacement& placement_;
  std::vector<Process> ranks_;
  std::map<ParityBlock, std::set<Version>> rows_;
};

TEST(ParityRebuild, AsManyLostDomainsAsParityBlocksCostAtMostOneStepAtAnyInstant) {
  uint64_t tried = 0, rebuilt = 0;
  for (uint64_t seed = 0; tried < 20'000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Seat> seats = random_topology(random, 7, 2);
    const uint32_t data = 1 + random() % 4, parity = 1 + random() % 3;
    const auto placement = place_parity(seats, data, parity);
    if (!placement) {
      continue;
    }
    ++tried;
    Schedule schedule(seed, seats, *placement);
    schedule.play(random() % (200 * seats.size()));
    const auto by_domain = ranks_by_domain(seats);
    std::set<uint32_t> lost;
    for (const uint64_t wanted = random() % (parity + 1); lost.size() < wanted;) {
      lost.insert(std::next(by_domain.begin(), static_cast<long>(random() % by_domain.size()))->first);
    }
    const auto found = schedule.lose(lost);
    ASSERT_TRUE(found) << "seed " << seed;
    ASSERT_GE(found->version + 1, schedule.committed()) << "seed " << seed;
    rebuilt += !lost.empty() && found->version > 10 ? 1 : 0;
  }
  EXPECT_GT(rebuilt, 2'000) << "too few schedules got beyond their first step";
}

}  // namespace
}  // namespace keepstep::brain
