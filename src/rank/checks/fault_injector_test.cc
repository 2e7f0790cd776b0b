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

nlohmann::json fault(const char* kind, nlohmann::json rank, int step, const char* phase) {
  return {{"key", "0"}, {"text", kind}, {"kind", kind}, {"rank", std::move(rank)}, {"step", step}, {"phase", phase}};
}

// A worker of a job in which keys are claimed once.
class FaultInjectorTest : public ::testing::Test {
 protected:
  FaultInjector injector(const nlohmann::json& faults, bool spare = false) {
    return {faults,
            spare,
            {.claim = [this](const std::string& key) { return claimed_.insert(key).second; },
             .announce = [this](const InjectedFault& fault,
                                const std::string& detail) { announced_.push_back(fault.text + detail); },
             .carry_out = [this](const InjectedFault& fault) { carried_out_.push_back(fault.kind); },
             .flip = [this](const InjectedFault& fault, brain::Step step) -> StatusOr<std::string> {
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
  FaultInjector faults = injector(nlohmann::json::array({fault("kill", 1, 4, "after_vote")}));
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
  FaultInjector first = injector(nlohmann::json::array({fault("segv", nullptr, 2, "forward")}));
  FaultInjector second = injector(nlohmann::json::array({fault("segv", nullptr, 2, "forward")}));
  EXPECT_TRUE(first.at("forward", 2, 0).ok());
  EXPECT_TRUE(second.at("forward", 2, 1).ok());
  EXPECT_THAT(carried_out_, ElementsAre("segv"));
}

TEST_F(FaultInjectorTest, without_a_current_step_it_fires_at_the_first_occasion_from_its_step_on) {
  FaultInjector faults = injector(nlohmann::json::array({fault("exit", 0, 5, "hydrate")}));
  EXPECT_TRUE(faults.at("hydrate", 4, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("hydrate", 9, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("exit"));
}

TEST_F(FaultInjectorTest, an_exception_is_an_error_of_the_call) {
  FaultInjector faults = injector(nlohmann::json::array({fault("exception", 0, 2, "update")}));
  const Status status = faults.at("update", 2, 0);
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("injected: exception"));
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_THAT(claimed_, ElementsAre("inject/0"));
}

TEST_F(FaultInjectorTest, a_flip_says_what_it_flipped_and_the_step_goes_on) {
  nlohmann::json faults = nlohmann::json::array({fault("flip", 0, 2, "before_vote"), fault("flip", 0, 3, "between")});
  faults[0].update({{"what", "gradient"}, {"seed", 9}});
  faults[1].update({{"key", "1"}, {"what", "parameter"}});
  FaultInjector injected = injector(faults);
  EXPECT_TRUE(injected.at("before_vote", 2, 0).ok());
  EXPECT_THAT(announced_, ElementsAre("flip 9 of step 2"));
  EXPECT_TRUE(absl::IsInvalidArgument(injected.at("between", 3, 0)));
  EXPECT_THAT(carried_out_, ElementsAre("flip"));
}

TEST_F(FaultInjectorTest, on_spare_means_workers_that_started_as_spares) {
  nlohmann::json faults = nlohmann::json::array({fault("kill", nullptr, 1, "hydrate")});
  faults[0]["on_spare"] = true;
  EXPECT_TRUE(injector(faults).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(injector(faults, true).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
}

TEST(ParseInjectedFault, a_rank_and_a_step_that_are_not_said_are_any_and_the_first) {
  nlohmann::json given = fault("kill", 2, 5, "update");
  given["times"] = nullptr;
  const auto parsed = parse_injected_fault(given);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->key, "0");
  EXPECT_EQ(parsed->rank, 2);
  EXPECT_EQ(parsed->step, 5);
  given["rank"] = nullptr;
  given["step"] = nullptr;
  EXPECT_EQ(parse_injected_fault(given)->rank, std::nullopt);
  EXPECT_EQ(parse_injected_fault(given)->step, 1);
}

TEST(ParseInjectedFault, names_what_it_does_not_know) {
  EXPECT_THAT(std::string(parse_injected_fault(fault("gil", 0, 1, "forward")).status().message()),
              HasSubstr("only kill, segv, exception, exit and flip"));
  nlohmann::json repeated = fault("kill", 0, 1, "forward");
  repeated["times"] = 3;
  EXPECT_THAT(std::string(parse_injected_fault(repeated).status().message()), HasSubstr("'times'"));
  const nlohmann::json bad[] = {
      7, "kill:rank=0,step=1,phase=forward", {{"kind", "kill"}}, fault("kill", "x", 1, "forward")};
  for (const nlohmann::json& each : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_injected_fault(each).status())) << each.dump();
  }
}

}  // namespace
}  // namespace keepstep::rank
