#include "agent/watch/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>

namespace keepstep::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kGiB = uint64_t{1} << 30;

HealthReading fine() {
  return {.memory_available_bytes = kGiB,
          .folders = {{.path = "/run", .free_bytes = kGiB, .write_s = 0.01}},
          .monotonic_ns = 1'000'000'000,
          .wall_ns = 5'000'000'000};
}

TEST(Health, a_node_that_is_well_has_no_findings) { EXPECT_THAT(judge_health(fine(), fine()), IsEmpty()); }

TEST(Health, each_limit_that_is_passed_is_named_with_what_was_measured) {
  HealthReading reading = fine();
  reading.memory_available_bytes = 3 << 20;
  reading.folders[0].free_bytes = 5 << 20;
  reading.folders.push_back({.path = "/slow", .free_bytes = kGiB, .write_s = 12});
  reading.folders.push_back({.path = "/broken", .free_bytes = kGiB, .error = "fsync: Input/output error"});
  EXPECT_THAT(judge_health(reading, std::nullopt),
              ElementsAre(HealthFinding{"memory", "3.0 MiB available", "64.0 MiB"},
                          HealthFinding{"disk /run", "5.0 MiB free", "64.0 MiB"},
                          HealthFinding{"disk /slow", "12.0 s for 4 KiB with fsync", "10 s"},
                          HealthFinding{"disk /broken", "fsync: Input/output error", "4 KiB can be written"}));
}

TEST(Health, what_the_driver_says_of_gpus_is_named_whether_it_makes_them_unfit_or_slow) {
  HealthReading reading = fine();
  reading.gpus = {{.index = 0, .uuid = "GPU-a", .slowed_by = 0x40, .temperature_c = 93},
                  {.index = 1, .uuid = "GPU-b", .uncorrected_errors = 2}};
  const auto found = judge_health(reading, fine());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].check, "gpu 0 (GPU-a): hardware thermal slowdown");
  EXPECT_EQ(found[1].check, "gpu 1 (GPU-b): memory");
  reading.gpus.clear();
  reading.gpu_error = "the driver does not answer: Unknown Error";
  EXPECT_THAT(judge_health(reading, fine()),
              ElementsAre(HealthFinding{"gpu driver", "the driver does not answer: Unknown Error", "an answer"}));
}

TEST(Health, a_wall_clock_that_jumps_is_found_and_one_that_drifts_is_not) {
  HealthReading later = fine();
  later.monotonic_ns += 60'000'000'000;
  later.wall_ns += 61'000'000'000;
  EXPECT_THAT(judge_health(later, fine()), IsEmpty());
  later.wall_ns -= 4'000'000'000;
  const auto found = judge_health(later, fine());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].measured, "the wall clock jumped by -3.0 s");
}

TEST(Health, measuring_leaves_nothing_behind_and_names_a_folder_that_cannot_be_written) {
  std::string folder = (std::filesystem::temp_directory_path() / "keepstep-health-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const HealthReading reading = measure_health({folder, folder + "/absent"});
  EXPECT_GT(reading.memory_available_bytes, 0u);
  ASSERT_EQ(reading.folders.size(), 2u);
  EXPECT_EQ(reading.folders[0].error, "");
  EXPECT_GT(reading.folders[0].free_bytes, 0u);
  EXPECT_THAT(reading.folders[1].error, HasSubstr("open: No such file"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(Health, a_watch_reports_at_once_and_again) {
  std::promise<void> twice;
  int reports = 0;
  {
    const HealthWatch watch({}, 0.001, [&](const HealthReading& reading) {
      EXPECT_GT(reading.wall_ns, 0);
      if (++reports == 2) {
        twice.set_value();
      }
    });
    twice.get_future().wait();
  }
}

TEST(Health, a_node_gives_up_after_three_unfit_workers_in_a_row) {
  NodeFitness fitness;
  EXPECT_FALSE(fitness.failed());
  EXPECT_FALSE(fitness.failed());
  fitness.passed();
  EXPECT_FALSE(fitness.failed());
  EXPECT_FALSE(fitness.failed());
  EXPECT_TRUE(fitness.failed());
}

}  // namespace
}  // namespace keepstep::agent
