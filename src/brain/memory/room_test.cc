// Which versions make room and which one is drained: the rules one by one, and random servers whose answers are judged.
#include "brain/memory/room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace keepstep::brain {
namespace {

using std::chrono::minutes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

ServedVersion version(Step step, int age_min, Drained drained = Drained::kNone) {
  return {.destination = "run", .step = step, .complete = true, .drained = drained, .age = minutes(age_min)};
}

std::vector<Step> steps(const std::vector<ServedVersion>& versions) {
  std::vector<Step> result;
  for (const size_t i : to_make_room(versions)) {
    result.push_back(versions[i].step);
  }
  return result;
}

TEST(ToMakeRoom, the_oldest_go_first_and_the_newest_never) {
  EXPECT_THAT(steps({version(30, 1), version(10, 3), version(20, 2)}), ElementsAre(10, 20));
  EXPECT_THAT(steps({version(10, 3)}), IsEmpty());
  EXPECT_THAT(steps({}), IsEmpty());
}

TEST(ToMakeRoom, what_a_disk_has_too_goes_before_what_waits_for_it) {
  EXPECT_THAT(steps({version(10, 9, Drained::kWaiting), version(20, 8), version(30, 7, Drained::kDone),
                     version(40, 6, Drained::kDone), version(50, 5)}),
              ElementsAre(30, 40, 20, 10));
}

TEST(ToMakeRoom, the_one_completed_last_stays_even_if_its_step_is_lower) {
  EXPECT_THAT(steps({version(50, 9), version(40, 10), version(20, 1)}), ElementsAre(40));
}

TEST(ToMakeRoom, each_destination_keeps_its_newest) {
  ServedVersion other = version(1, 99);
  other.destination = "other";
  EXPECT_THAT(steps({other, version(10, 3), version(20, 2)}), ElementsAre(10));
}

TEST(ToMakeRoom, pinned_ones_and_those_in_use_stay) {
  ServedVersion pinned = version(10, 9);
  pinned.pinned = true;
  ServedVersion read = version(20, 8);
  read.in_use = true;
  EXPECT_THAT(steps({pinned, read, version(30, 7), version(40, 1)}), ElementsAre(30));
}

TEST(ToMakeRoom, saves_under_way_stay_and_what_dead_writers_left_goes_first) {
  ServedVersion running = version(50, 1);
  running.complete = false;
  ServedVersion dead = version(20, 61);
  dead.complete = false;
  EXPECT_THAT(steps({version(10, 90), running, dead, version(40, 5)}), ElementsAre(20, 10));
}

TEST(ToDrain, the_newest_that_waits_is_next) {
  const auto next = [](std::vector<ServedVersion> versions, uint64_t keep) -> Step {
    const auto found = to_drain(versions, keep);
    return found ? versions[*found].step : 0;
  };
  using enum Drained;
  EXPECT_EQ(next({version(10, 3, kWaiting), version(30, 1, kWaiting), version(20, 2, kWaiting)}, 0), 30);
  EXPECT_EQ(next({version(10, 3, kWaiting), version(30, 1, kDone), version(20, 2, kWaiting)}, 0), 20);
  EXPECT_EQ(next({version(10, 3, kWaiting), version(30, 1, kDone), version(20, 2, kDone)}, 0), 10);
  EXPECT_EQ(next({version(10, 3, kWaiting), version(30, 1, kDone), version(20, 2, kDone)}, 2), 0);
  ServedVersion running = version(40, 0, kWaiting);
  running.complete = false;
  EXPECT_EQ(next({running}, 0), 0);
  EXPECT_EQ(next({}, 1), 0);
}

TEST(ToMakeRoom, of_random_servers_never_takes_what_must_stay) {
  std::mt19937_64 random(7);
  const auto chance = [&](uint64_t of) { return random() % of == 0; };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<ServedVersion> versions;
    std::set<std::pair<std::string, Step>> there;
    for (uint64_t count = random() % 12; count > 0; --count) {
      ServedVersion each{.destination = chance(2) ? "a" : "b",
                         .step = random() % 9,
                         .complete = !chance(3),
                         .pinned = chance(6),
                         .in_use = chance(6),
                         .drained = static_cast<Drained>(random() % 3),
                         .age = minutes(random() % 120)};
      if (there.emplace(each.destination, each.step).second) {
        versions.push_back(each);
      }
    }
    const std::vector<size_t> order = to_make_room(versions);
    const std::set<size_t> taken(order.begin(), order.end());
    ASSERT_EQ(taken.size(), order.size());
    for (size_t i = 0; i < versions.size(); ++i) {
      const ServedVersion& one = versions[i];
      const bool newest = one.complete && std::none_of(versions.begin(), versions.end(), [&](const auto& other) {
                            return other.complete && other.destination == one.destination && other.step > one.step;
                          });
      const bool running = !one.complete && one.age <= kSaveLimit;
      if (newest || running || one.pinned || one.in_use) {
        ASSERT_FALSE(taken.contains(i)) << "round " << round;
      }
    }
    // Whoever has a complete version keeps one, and with it the one completed last.
    for (const char* destination : {"a", "b"}) {
      const ServedVersion* last = nullptr;
      for (const ServedVersion& one : versions) {
        if (one.complete && one.destination == destination && (last == nullptr || one.age < last->age)) {
          last = &one;
        }
      }
      if (last != nullptr) {
        const auto same_age = std::count_if(versions.begin(), versions.end(), [&](const auto& other) {
          return other.complete && other.destination == last->destination && other.age == last->age;
        });
        ASSERT_TRUE(same_age > 1 || !taken.contains(static_cast<size_t>(last - versions.data())));
      }
    }
    for (size_t i = 1; i < order.size(); ++i) {
      const ServedVersion& before = versions[order[i - 1]];
      const ServedVersion& after = versions[order[i]];
      ASSERT_TRUE(!before.complete || after.complete);
      if (before.complete && before.drained == after.drained) {
        ASSERT_GE(before.age, after.age);
      } else if (before.complete) {
        ASSERT_LT(before.drained, after.drained);
      }
    }
  }
}

}  // namespace
}  // namespace keepstep::brain
