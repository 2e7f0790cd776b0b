#include "rank/checks/fault_injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_format.h"

namespace keepstep::rank {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Fault fault(const char* kind, std::optional<uint32_t> rank, std::optional<brain::Step> step, const char* phase) {
  return {.key = "0", .text = kind, .kind = kind, .phase = phase, .rank = rank, .step = step};
}

// A worker of a job that hands out each key once.
class FaultInjectorTest : public ::testing::Test {
 protected:
  FaultInjector injector(std::vector<Fault> faults, bool spare = false) {
    return {std::move(faults),
            spare,
            {.claim = [this](const std::string& key) { return claimed_.insert(key).second; },
             .announce = [this](const Fault& fault,
                                const std::string& detail) { announced_.push_back(fault.text + detail); },
             .carry_out = [this](const Fault& fault) { carried_out_.push_back(fault.kind); },
             .flip = [this](const Fault& fault, brain::Step step) -> StatusOr<std::string> {
               if (fault.what != "gradient") {
                 return absl::InvalidArgumentError("there is none");
               }
               carried_out_.push_back(fault.kind);
               return absl::StrFormat(" %d of step %d", fault.seed.value_or(0), step);
             }}};
  }

  std::set<std::string> claimed_;
  std::vector<std::string> announced_;
  std::vector<std::string> carried_out_;
};

TEST_F(FaultInjectorTest, a_fault_fires_at_its_rank_step_and_phase_only_and_once) {
  FaultInjector faults = injector({fault("kill", 1, 4, "after_vote")});
  EXPECT_TRUE(faults.at("after_vote", 3, 1).ok());
  EXPECT_TRUE(faults.at("after_vote", 4, 0).ok());
  EXPECT_TRUE(faults.at("update", 4, 1).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("after_vote", 4, 1).ok());
  EXPECT_TRUE(faults.at("after_vote", 4, 1).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
  EXPECT_THAT(announced_, ElementsAre("kill"));
}

TEST_F(FaultInjectorTest, what_another_worker_claimed_does_not_fire_here) {
  FaultInjector first = injector({fault("segv", std::nullopt, 2, "forward")});
  FaultInjector second = injector({fault("segv", std::nullopt, 2, "forward")});
  EXPECT_TRUE(first.at("forward", 2, 0).ok());
  EXPECT_TRUE(second.at("forward", 2, 1).ok());
  EXPECT_THAT(carried_out_, ElementsAre("segv"));
}

TEST_F(FaultInjectorTest, without_a_current_step_it_fires_at_the_first_occasion_from_its_step_on) {
  FaultInjector faults = injector({fault("exit", 0, 5, "hydrate")});
  EXPECT_TRUE(faults.at("hydrate", 4, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("hydrate", 9, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("exit"));
}

TEST_F(FaultInjectorTest, an_exception_is_an_error_of_the_call) {
  FaultInjector faults = injector({fault("exception", 0, 2, "update")});
  const Status status = faults.at("update", 2, 0);
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("injected: exception"));
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_THAT(claimed_, ElementsAre("inject/0"));
}

TEST_F(FaultInjectorTest, a_flip_says_what_it_flipped_and_the_step_goes_on) {
  std::vector<Fault> faults = {fault("flip", 0, 2, "before_vote"), fault("flip", 0, 3, "between")};
  faults[0].what = "gradient";
  faults[0].seed = 9;
  faults[1].key = "1";
  faults[1].what = "parameter";
  FaultInjector injected = injector(faults);
  EXPECT_TRUE(injected.at("before_vote", 2, 0).ok());
  EXPECT_THAT(announced_, ElementsAre("flip 9 of step 2"));
  EXPECT_TRUE(absl::IsInvalidArgument(injected.at("between", 3, 0)));
  EXPECT_THAT(carried_out_, ElementsAre("flip"));
}

TEST_F(FaultInjectorTest, on_spare_means_workers_that_started_as_spares) {
  std::vector<Fault> faults = {fault("kill", std::nullopt, 1, "hydrate")};
  faults[0].on_spare = true;
  EXPECT_TRUE(injector(faults).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(injector(faults, true).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
}

TEST_F(FaultInjectorTest, a_step_that_is_not_said_is_the_first) {
  FaultInjector faults = injector({fault("kill", 2, std::nullopt, "update")});
  EXPECT_TRUE(faults.at("update", 2, 2).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("update", 1, 2).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
}

TEST_F(FaultInjectorTest, what_a_program_cannot_do_is_named_and_left_out) {
  EXPECT_THAT(std::string(possible_in_a_program(fault("gil", 0, 1, "forward")).message()),
              HasSubstr("only kill, segv, exception, exit and flip"));
  Fault repeated = fault("kill", 0, 1, "forward");
  repeated.times = 3;
  EXPECT_THAT(std::string(possible_in_a_program(repeated).message()), HasSubstr("'times'"));
  FaultInjector faults = injector({repeated, fault("gil", 0, 1, "forward")});
  EXPECT_TRUE(faults.at("forward", 1, 0).ok());
  EXPECT_THAT(claimed_, IsEmpty());
}

}  // namespace
}  // namespace keepstep::rank
