// Which checkpoints are removed: a readable transcript, and random tiers whose checkpoints are judged one by one by a
// second implementation of the rules.
//
//   rules keep=3 max_age_min=60 keep_every=100 save_limit_s=3600   the rules from now on
//   listed complete=100@50!,110@40* incomplete=120@1               STEP@AGE in minutes; !: pinned, *: in use
#include "brain/copies/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using transcript::Line;

void list(const std::string& text, bool complete, std::vector<StoredCheckpoint>& into) {
  for (const std::string& part : transcript::split(text, ',')) {
    const size_t at = part.find('@');
    into.push_back({std::stoull(part.substr(0, at)), complete, part.back() == '!', part.back() == '*',
                    minutes(std::stoi(part.substr(at + 1)))});
  }
}

TEST(Retention, transcript_reads_as_recorded) {
  RetentionRules rules;
  EXPECT_EQ(
      transcript::check("copies/testdata/retention",
                        [&](const Line& line) -> std::vector<std::string> {
                          if (line.verb == "rules") {
                            rules = {static_cast<uint32_t>(line.number("keep")), minutes(line.number("max_age_min")),
                                     line.number("keep_every"), seconds(line.number("save_limit_s", 3600))};
                            return {};
                          }
                          std::vector<StoredCheckpoint> stored;
                          list(line.text("complete"), true, stored);
                          list(line.text("incomplete"), false, stored);
                          std::vector<std::string> lines;
                          for (const Removal& removal : to_remove(stored, rules)) {
                            lines.push_back("remove step=" + std::to_string(removal.step) +
                                            " for=" + name(removal.reason) + " because=\"" + removal.because + "\"");
                          }
                          return lines.empty() ? std::vector<std::string>{"(nothing)"} : lines;
                        }),
      "");
}

struct Tier {
  std::vector<StoredCheckpoint> stored;
  RetentionRules rules;
};

Tier random_tier(std::mt19937_64& random) {
  Tier tier;
  const auto chance = [&](uint64_t of) { return random() % of == 0; };
  tier.rules.keep = static_cast<uint32_t>(random() % 5);
  tier.rules.max_age = chance(2) ? Time{} : Time(minutes(1 + random() % 300));
  tier.rules.keep_every = chance(2) ? 0 : 1 + random() % 40;
  tier.rules.save_limit = minutes(1 + random() % 100);
  std::set<Step> steps;
  for (uint64_t count = random() % 15; count > 0; --count) {
    steps.insert(random() % 200);
  }
  for (const Step step : steps) {  // at least one clock tick apart, so that "completed last" is unique
    tier.stored.push_back({step, !chance(3), chance(6), chance(6),
                           minutes(random() % 400) + std::chrono::nanoseconds(tier.stored.size())});
  }
  std::shuffle(tier.stored.begin(), tier.stored.end(), random);
  return tier;
}

bool must_stay(const Tier& tier, const StoredCheckpoint& one) {
  if (one.pinned || one.in_use) {
    return true;
  }
  if (!one.complete) {
    return one.age <= tier.rules.save_limit;
  }
  const auto complete_ones = [&](auto condition) {
    return std::count_if(tier.stored.begin(), tier.stored.end(),
                         [&](const StoredCheckpoint& other) { return other.complete && condition(other); });
  };
  const auto newer = complete_ones([&](const StoredCheckpoint& other) { return other.step > one.step; });
  const auto younger = complete_ones([&](const StoredCheckpoint& other) { return other.age < one.age; });
  if (newer == 0 || younger == 0 || (tier.rules.keep_every != 0 && one.step % tier.rules.keep_every == 0)) {
    return true;
  }
  const bool counted_out = tier.rules.keep != 0 && newer >= tier.rules.keep;
  const bool aged_out = tier.rules.max_age != Time{} && one.age > tier.rules.max_age;
  return !counted_out && !aged_out;
}

TEST(Retention, of_random_tiers_exactly_those_go_that_no_rule_keeps_and_a_second_time_nothing_goes) {
  std::mt19937_64 random(41);
  uint64_t removed_ones = 0;
  uint64_t removed_incomplete = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 41");
    Tier tier = random_tier(random);
    const std::vector<Removal> removals = to_remove(tier.stored, tier.rules);
    std::set<Step> removed;
    for (const Removal& removal : removals) {
      EXPECT_TRUE(removed.empty() || *removed.rbegin() < removal.step) << "the oldest goes first";
      EXPECT_FALSE(removal.because.empty());
      removed.insert(removal.step);
    }
    for (const StoredCheckpoint& one : tier.stored) {
      ASSERT_EQ(removed.contains(one.step), !must_stay(tier, one)) << "step " << one.step;
    }
    removed_ones += removed.size();
    removed_incomplete +=
        static_cast<uint64_t>(std::count_if(removals.begin(), removals.end(), [](const Removal& removal) {
          return removal.reason == RemovedFor::kIncomplete;
        }));
    std::erase_if(tier.stored, [&](const StoredCheckpoint& one) { return removed.contains(one.step); });
    ASSERT_TRUE(to_remove(tier.stored, tier.rules).empty()) << "what stayed stays until something changes";
  }
  EXPECT_GT(removed_ones, 20000u);
  EXPECT_GT(removed_incomplete, 2000u);
}

TEST(Retention, of_an_empty_tier_nothing_goes) { EXPECT_TRUE(to_remove({}, {}).empty()); }

}  // namespace
}  // namespace keepstep::brain
