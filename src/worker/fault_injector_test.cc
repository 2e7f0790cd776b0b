#include "worker/fault_injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace keepstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A worker of a job in which keys are claimed once.
class FaultInjectorTest : public ::testing::Test {
 protected:
  FaultInjector injector(const nlohmann::json& faults, bool spare = false) {
    return {faults,
            spare,
            {.claim = [this](const std::string& key) { return claimed_.insert(key).second; },
             .announce = [this](const InjectedFault& fault) { announced_.push_back(fault.text); },
             .carry_out = [this](const InjectedFault& fault) { carried_out_.push_back(fault.kind); }}};
  }

  std::set<std::string> claimed_;
  std::vector<std::string> announced_;
  std::vector<std::string> carried_out_;
};

TEST_F(FaultInjectorTest, a_fault_fires_at_its_rank_step_and_phase_only_and_once) {
  FaultInjector faults = injector({"kill:rank=1,step=4,phase=after_vote"});
  EXPECT_TRUE(faults.at("after_vote", 3, 1).ok());
  EXPECT_TRUE(faults.at("after_vote", 4, 0).ok());
  EXPECT_TRUE(faults.at("update", 4, 1).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("after_vote", 4, 1).ok());
  EXPECT_TRUE(faults.at("after_vote", 4, 1).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
  EXPECT_THAT(announced_, ElementsAre("kill:rank=1,step=4,phase=after_vote"));
}

TEST_F(FaultInjectorTest, what_another_worker_claimed_does_not_fire_here) {
  FaultInjector first = injector({"segv:rank=any,step=2,phase=forward"});
  FaultInjector second = injector({"segv:rank=any,step=2,phase=forward"});
  EXPECT_TRUE(first.at("forward", 2, 0).ok());
  EXPECT_TRUE(second.at("forward", 2, 1).ok());
  EXPECT_THAT(carried_out_, ElementsAre("segv"));
}

TEST_F(FaultInjectorTest, without_a_current_step_it_fires_at_the_first_occasion_from_its_step_on) {
  FaultInjector faults = injector({"exit:rank=0,step=5,phase=hydrate"});
  EXPECT_TRUE(faults.at("hydrate", 4, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(faults.at("hydrate", 9, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("exit"));
}

TEST_F(FaultInjectorTest, an_exception_is_an_error_of_the_call) {
  FaultInjector faults = injector({nullptr, "exception:rank=0,step=2,phase=update"});
  const Status status = faults.at("update", 2, 0);
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("exception:rank=0,step=2,phase=update"));
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_THAT(claimed_, ElementsAre("inject/1"));
}

TEST_F(FaultInjectorTest, on_spare_means_workers_that_started_as_spares) {
  const nlohmann::json faults = {"kill:rank=any,step=1,phase=hydrate,on=spare"};
  EXPECT_TRUE(injector(faults).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, IsEmpty());
  EXPECT_TRUE(injector(faults, true).at("hydrate", 1, 0).ok());
  EXPECT_THAT(carried_out_, ElementsAre("kill"));
}

TEST(ParseInjectedFault, takes_an_object_as_well_as_a_text) {
  const auto fault = parse_injected_fault(3, {{"key", "run/7"},
                                              {"text", "kill:.."},
                                              {"kind", "kill"},
                                              {"phase", "update"},
                                              {"rank", 2},
                                              {"step", nullptr},
                                              {"times", nullptr}});
  ASSERT_TRUE(fault.ok()) << fault.status();
  EXPECT_EQ(fault->key, "run/7");
  EXPECT_EQ(fault->rank, 2);
  EXPECT_EQ(fault->step, 1);
  EXPECT_EQ(parse_injected_fault(3, "kill:rank=2,step=5,phase=update")->key, "3");
  EXPECT_FALSE(
      parse_injected_fault(0, {{"key", "a"}, {"text", "t"}, {"kind", "kill"}, {"phase", "update"}, {"times", 3}}).ok());
  EXPECT_FALSE(parse_injected_fault(0, {{"kind", "kill"}}).ok());
  EXPECT_FALSE(parse_injected_fault(0, 7).ok());
}

TEST(ParseInjectedFault, names_what_it_does_not_know) {
  EXPECT_THAT(std::string(parse_injected_fault(0, "gil:rank=0,step=1,phase=forward").status().message()),
              HasSubstr("only kill, segv, exception and exit"));
  for (const char* text : {"kill", "kill:rank=x,step=1,phase=forward", "kill:rank=0,step=-1,phase=forward",
                           "kill:rank=0,step=1,phase=forward,times=3", "kill:"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_injected_fault(0, text).status())) << text;
  }
}

}  // namespace
}  // namespace keepstep::worker
