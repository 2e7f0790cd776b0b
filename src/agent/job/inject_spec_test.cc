#include "agent/job/inject_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rank/checks/fault_injector.h"

namespace keepstep::agent {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  const auto spec = parse_inject(text);
  return spec.ok() ? "" : std::string(spec.status().message());
}

TEST(InjectSpec, a_whole_fault_is_read) {
  const auto spec = parse_inject("kill:rank=2,step=20,phase=backward,on=spare");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->kind, InjectKind::kKill);
  EXPECT_EQ(spec->rank, 2u);
  EXPECT_EQ(spec->step, 20u);
  EXPECT_EQ(spec->phase, InjectPhase::kBackward);
  EXPECT_TRUE(spec->on_spare);
  EXPECT_EQ(spec->text, "kill:rank=2,step=20,phase=backward,on=spare");
}

TEST(InjectSpec, any_rank_is_no_rank_and_the_order_of_keys_is_free) {
  const auto spec = parse_inject("exception:phase=between,step=1,rank=any");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->rank.has_value());
  EXPECT_FALSE(spec->on_spare);
}

TEST(InjectSpec, every_kind_and_phase_that_is_offered_is_understood) {
  for (const char* kind : {"kill", "segv", "exception", "exit", "stop", "gil", "loop", "deadlock", "oom", "agent-kill",
                           "agent-stop", "link-drop", "disk-full"}) {
    for (const char* phase : {"forward", "backward", "allreduce", "before_vote", "after_vote", "update", "between",
                              "hydrate", "recovery", "build"}) {
      const auto spec = parse_inject(std::string(kind) + ":rank=0,step=1,phase=" + phase);
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_STREQ(name(spec->kind), kind);
      EXPECT_STREQ(name(*spec->phase), phase);
      EXPECT_THAT(inject_kinds(), HasSubstr(kind));
      EXPECT_THAT(inject_phases(), HasSubstr(phase));
    }
  }
}

TEST(InjectSpec, all_mistakes_are_named_at_once) {
  const std::string error = error_of("murder:rank=-1,step=0,phase=lunch,on=node,color=red,x");
  for (const char* part :
       {"'murder' is no kind", "kill, segv, exception, exit, stop", "rank is '-1'", "numbered from 1",
        "phase is 'lunch'", "before_vote", "on is 'node'", "'color' is no key", "'x' is not KEY=VALUE"}) {
    EXPECT_THAT(error, HasSubstr(part));
  }
}

TEST(InjectSpec, what_is_missing_or_given_twice_is_named) {
  const std::string error = error_of("kill:rank=1,rank=2");
  EXPECT_THAT(error, HasSubstr("rank is given twice"));
  EXPECT_THAT(error, HasSubstr("step is missing"));
  EXPECT_THAT(error, HasSubstr("phase is missing"));
  EXPECT_THAT(error_of(""), HasSubstr("KIND:rank=R|any,step=K,phase=P[,on=spare]"));
}

TEST(InjectSpec, numbers_with_anything_behind_them_or_too_large_are_refused) {
  EXPECT_THAT(error_of("kill:rank=1x,step=2,phase=build"), HasSubstr("rank is '1x'"));
  EXPECT_THAT(error_of("kill:rank=1,step=99999999999999999999999,phase=build"), HasSubstr("numbered from 1"));
}

TEST(InjectSpec, each_kind_has_keys_of_its_own_and_no_others) {
  const auto slow = parse_inject("slow:rank=1,step=5,factor=2.5,times=30");
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(slow->factor, 2.5);
  EXPECT_EQ(slow->times, 30u);
  EXPECT_EQ(slow->phase, InjectPhase::kForward);
  const auto flip = parse_inject("flip:rank=0,step=5,what=gradient,seed=18446744073709551615");
  ASSERT_TRUE(flip.ok()) << flip.status();
  EXPECT_EQ(flip->phase, InjectPhase::kBeforeVote);
  EXPECT_EQ(flip->seed, 18446744073709551615u);
  EXPECT_EQ(parse_inject("stop:rank=any,step=1,phase=update,seconds=0.5,probability=0.25")->probability, 0.25);
  EXPECT_THAT(error_of("kill:rank=0,step=1,phase=build,factor=2"), HasSubstr("'factor' is no key of kill"));
  EXPECT_THAT(error_of("slow:rank=0,step=1"), HasSubstr("either seconds=S"));
  EXPECT_THAT(error_of("slow:rank=0,step=1,factor=2,probability=0.5"), HasSubstr("takes no probability"));
  EXPECT_THAT(error_of("flip:rank=0,step=1"), HasSubstr("what is missing"));
  EXPECT_THAT(error_of("flip:rank=0,step=1,what=weather"), HasSubstr("gradient, parameter"));
  EXPECT_THAT(error_of("flip:rank=0,step=1,what=gradient,phase=between"), HasSubstr("before_vote or after_vote"));
  EXPECT_THAT(error_of("link-delay:rank=0,step=1"), HasSubstr("ms is missing"));
}

TEST(InjectSpec, numbers_out_of_bounds_and_what_is_no_number_are_refused) {
  for (const char* bad : {"stop:rank=0,step=1,phase=build,seconds=0", "stop:rank=0,step=1,phase=build,seconds=nan",
                          "stop:rank=0,step=1,phase=build,seconds=1e9", "oom:rank=0,step=1,phase=build,mib=99999999",
                          "kill:rank=0,step=1,phase=build,probability=1.1", "kill:rank=0,step=1,phase=build,times=0",
                          "link-delay:rank=0,step=1,ms=-5", "slow:rank=0,step=1,factor=inf"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("give a number")) << bad;
  }
  EXPECT_THAT(error_of("kill:" + std::string(2000, 'x')), HasSubstr("a fault of 2005 bytes"));
}

TEST(InjectSpec, a_running_job_needs_no_rank_no_step_and_no_phase) {
  const auto spec = parse_inject("kill", InjectFor::kNow);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->rank.has_value());
  EXPECT_FALSE(spec->step.has_value());
  EXPECT_FALSE(spec->phase.has_value());
  EXPECT_EQ(default_phase(*spec), InjectPhase::kBetween);
  EXPECT_FALSE(parse_inject("murder", InjectFor::kNow).ok());
}

TEST(InjectSpec, what_programs_carry_out_are_kinds_of_faults) {
  for (const std::string_view kind : rank::kProgramFaults) {
    const auto spec = parse_inject(std::string(kind) + (kind == "flip" ? ":what=gradient" : ""), InjectFor::kNow);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(for_programs(spec->kind)) << kind;
  }
  EXPECT_FALSE(for_programs(InjectKind::kGil));
  EXPECT_FALSE(for_programs(InjectKind::kAgentKill));
  EXPECT_EQ(program_faults(), "kill, segv, exception, exit and flip");
}

TEST(InjectSpec, a_worker_gets_every_field) {
  const auto fault = for_worker(*parse_inject("slow:rank=3,step=5,factor=2,times=9", InjectFor::kRun), "7", false);
  EXPECT_EQ(fault.key, "7");
  EXPECT_EQ(fault.kind, "slow");
  EXPECT_EQ(fault.phase, "forward");
  EXPECT_EQ(fault.rank, 3);
  EXPECT_EQ(fault.step, 5);
  EXPECT_EQ(fault.factor, 2.0);
  EXPECT_EQ(fault.times, 9);
  EXPECT_FALSE(fault.late);
  EXPECT_FALSE(fault.probability.has_value());
}

}  // namespace
}  // namespace keepstep::agent
