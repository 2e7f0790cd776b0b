// With tests/fake_nvml in place of NVIDIA's library.
#include "rank/checks/gpu_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace keepstep::rank {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

StatusOr<std::vector<GpuReading>> read_as(const char* answers) {
  setenv("FAKE_NVML", answers, 1);
  return read_gpus(KEEPSTEP_FAKE_NVML);
}

std::vector<GpuFinding> findings_of(const char* answers) {
  const auto gpus = read_as(answers);
  EXPECT_TRUE(gpus.ok()) << gpus.status();
  return gpus.ok() ? judge_gpus(*gpus) : std::vector<GpuFinding>();
}

TEST(GpuHealth, gpus_that_are_well_have_no_findings) {
  const auto gpus = read_as("gpus=3");
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 3u);
  EXPECT_EQ(gpus->at(2).uuid, "GPU-0002");
  EXPECT_EQ(gpus->at(2).temperature_c, 40u);
  EXPECT_EQ(gpus->at(2).slowdown_c, 90u);
  EXPECT_THAT(judge_gpus(*gpus), IsEmpty());
}

TEST(GpuHealth, broken_memory_makes_a_gpu_unfit_and_is_named_with_its_number) {
  const auto findings = findings_of("gpus=2 1.ecc=3");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].check, "gpu 1 (GPU-0001): memory");
  EXPECT_THAT(findings[0].measured, HasSubstr("3 errors"));
  EXPECT_TRUE(findings[0].unfit);
  for (const char* broken : {"0.rows=1", "0.pages=1", "0.rows_failed=1"}) {
    const auto rows = findings_of(broken);
    ASSERT_EQ(rows.size(), 1u) << broken;
    EXPECT_TRUE(rows[0].unfit) << broken;
    EXPECT_EQ(rows[0].check, "gpu 0 (GPU-0000): memory rows") << broken;
  }
}

TEST(GpuHealth, what_only_slows_a_gpu_down_is_said_and_it_stays_fit) {
  const auto findings = findings_of("0.reasons=72 0.temperature=95");  // 0x48
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_THAT(findings[0].check, HasSubstr("hardware slowdown"));
  EXPECT_THAT(findings[1].check, HasSubstr("hardware thermal slowdown"));
  EXPECT_EQ(findings[2].measured, "95 degrees");
  for (const GpuFinding& finding : findings) {
    EXPECT_FALSE(finding.unfit) << finding.check;
  }
  EXPECT_THAT(findings_of("0.reasons=7"), IsEmpty()) << "idle, clocks set, a cap on its power: everyday";
}

TEST(GpuHealth, a_lost_gpu_is_unfit_and_the_others_are_read) {
  const auto gpus = read_as("gpus=2 0.lost=1 1.temperature=50");
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ(gpus->at(1).temperature_c, 50u);
  const auto findings = judge_gpus(*gpus);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].measured, HasSubstr("GPU is lost"));
  EXPECT_TRUE(findings[0].unfit);
}

TEST(GpuHealth, what_a_gpu_does_not_have_is_no_fault) {
  EXPECT_THAT(findings_of("0.old=1 0.ecc=5 0.rows=1"), IsEmpty());
}

TEST(GpuHealth, no_library_and_another_one_are_no_driver_and_a_silent_driver_is_an_error) {
  EXPECT_EQ(read_gpus("libthere-is-none.so.1").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(read_gpus("libm.so.6").status().code(), absl::StatusCode::kNotFound);
  const auto silent = read_as("init=999");
  EXPECT_EQ(silent.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(silent.status().ToString(), HasSubstr("Unknown Error"));
}

}  // namespace
}  // namespace keepstep::rank
