#include "brain/reshard/hydration_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace keepstep::brain {
namespace {

struct Case {
  std::vector<PlanEntry> entries;
  uint32_t sources = 1;
  uint64_t chunk_bytes = 1;
  uint32_t first_source = 0;
};

Case random_case(std::mt19937_64& random) {
  Case made;
  made.entries.resize(random() % 40);
  for (PlanEntry& entry : made.entries) {
    entry.bytes = random() % 4 == 0 ? 0 : random() % (random() % 3 == 0 ? 100000 : 500);
    entry.wanted = random() % 5 != 0;
  }
  made.sources = 1 + static_cast<uint32_t>(random() % 9);
  made.chunk_bytes = 1 + random() % 4096;
  made.first_source = static_cast<uint32_t>(random() % 20);
  return made;
}

std::vector<uint64_t> shares(const std::vector<PlanRange>& plan, uint32_t sources) {
  std::vector<uint64_t> bytes(sources, 0);
  for (const PlanRange& range : plan) {
    bytes.at(range.source) += range.bytes;
  }
  return bytes;
}

template <typename Check>
void for_random_cases(Check check) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 500; ++round) {
    const Case made = random_case(random);
    check(made, plan_hydration(made.entries, made.sources, made.chunk_bytes, made.first_source));
  }
}

TEST(HydrationPlan, asks_for_every_wanted_byte_once) {
  for_random_cases([](const Case& made, const std::vector<PlanRange>& plan) {
    std::map<uint32_t, uint64_t> covered;
    for (const PlanRange& range : plan) {
      EXPECT_EQ(range.offset, covered[range.entry]) << "ranges of an entry follow one another without gap or overlap";
      covered[range.entry] += range.bytes;
    }
    for (uint32_t entry = 0; entry < made.entries.size(); ++entry) {
      EXPECT_EQ(covered[entry], made.entries[entry].wanted ? made.entries[entry].bytes : 0);
    }
  });
}

TEST(HydrationPlan, has_no_range_that_is_empty_or_larger_than_a_chunk) {
  for_random_cases([](const Case& made, const std::vector<PlanRange>& plan) {
    for (const PlanRange& range : plan) {
      EXPECT_GT(range.bytes, 0u);
      EXPECT_LE(range.bytes, made.chunk_bytes);
    }
  });
}

TEST(HydrationPlan, gives_all_sources_equal_shares_to_within_one_chunk) {
  for_random_cases([](const Case& made, const std::vector<PlanRange>& plan) {
    const std::vector<uint64_t> bytes = shares(plan, made.sources);
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    EXPECT_LE(*most - *least, made.chunk_bytes);
  });
}

TEST(HydrationPlan, lets_each_source_read_in_order) {
  for_random_cases([](const Case& made, const std::vector<PlanRange>& plan) {
    for (uint32_t source = 0; source < made.sources; ++source) {
      std::pair<uint32_t, uint64_t> last{0, 0};
      for (const PlanRange& range : plan) {
        if (range.source == source) {
          EXPECT_LE(last, std::make_pair(range.entry, range.offset));
          last = {range.entry, range.offset};
        }
      }
    }
  });
}

TEST(HydrationPlan, starts_different_targets_at_different_sources) {
  const std::vector<PlanEntry> entries = {{1000}};
  for (uint32_t first = 0; first < 8; ++first) {
    const std::vector<PlanRange> plan = plan_hydration(entries, 4, 100, first);
    EXPECT_EQ(plan[0].source, first % 4);
    EXPECT_EQ(plan[1].source, (first + 1) % 4);
  }
}

TEST(HydrationPlan, is_empty_without_sources_or_without_anything_wanted) {
  EXPECT_TRUE(plan_hydration({{1000}}, 0, 100).empty());
  EXPECT_TRUE(plan_hydration({}, 3, 100).empty());
  EXPECT_TRUE(plan_hydration({{0}, {1000, false}}, 3, 100).empty());
}

TEST(Replanning, deals_out_exactly_what_the_lost_source_owed_and_keeps_the_balance) {
  for_random_cases([](const Case& made, const std::vector<PlanRange>& plan) {
    const uint32_t lost = made.first_source % made.sources;
    const std::vector<PlanRange> again = replan_without(plan, lost, made.sources);
    if (made.sources == 1) {
      EXPECT_TRUE(again.empty()) << "nobody is left";
      return;
    }
    std::vector<PlanRange> owed;
    std::copy_if(plan.begin(), plan.end(), std::back_inserter(owed),
                 [&](const PlanRange& range) { return range.source == lost; });
    ASSERT_EQ(again.size(), owed.size());
    for (size_t index = 0; index < owed.size(); ++index) {
      EXPECT_NE(again[index].source, lost);
      owed[index].source = again[index].source;
      EXPECT_EQ(again[index], owed[index]);
    }
    std::vector<PlanRange> whole = again;
    std::copy_if(plan.begin(), plan.end(), std::back_inserter(whole),
                 [&](const PlanRange& range) { return range.source != lost; });
    std::vector<uint64_t> bytes = shares(whole, made.sources);
    bytes.erase(bytes.begin() + lost);
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    EXPECT_LE(*most - *least, made.chunk_bytes);
  });
}

TEST(Replanning, leaves_the_ranges_of_living_sources_alone) {
  EXPECT_TRUE(replan_without({{0, 0, 10, 1}, {1, 0, 10, 2}}, 0, 3).empty());
}

}  // namespace
}  // namespace keepstep::brain
