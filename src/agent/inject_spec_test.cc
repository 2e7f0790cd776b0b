#include "agent/inject_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  for (const char* kind : {"kill", "segv", "exception", "exit"}) {
    for (const char* phase : {"forward", "backward", "allreduce", "before_vote", "after_vote", "update", "between",
                              "hydrate", "recovery", "build"}) {
      const auto spec = parse_inject(std::string(kind) + ":rank=0,step=1,phase=" + phase);
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_STREQ(name(spec->kind), kind);
      EXPECT_STREQ(name(spec->phase), phase);
      EXPECT_THAT(inject_kinds(), HasSubstr(kind));
      EXPECT_THAT(inject_phases(), HasSubstr(phase));
    }
  }
}

TEST(InjectSpec, all_mistakes_are_named_at_once) {
  const std::string error = error_of("murder:rank=-1,step=0,phase=lunch,on=node,color=red,x");
  for (const char* part :
       {"'murder' is no kind", "kill, segv, exception, exit", "rank is '-1'", "numbered from 1", "phase is 'lunch'",
        "before_vote", "on is 'node'", "'color' is no key", "'x' is not KEY=VALUE"}) {
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

}  // namespace
}  // namespace keepstep::agent
