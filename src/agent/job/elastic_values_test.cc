#include "agent/job/elastic_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::agent {
namespace {

using brain::ElasticConfig;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

PolicyFile parsed(const std::string& text) { return parse_policy_file(text, "policy.yaml"); }

constexpr const char* kAll = R"(minReplicas: 2
maxReplicas: 8
replicaIncrementStep: 3
scalingTimeoutInSeconds: 1.5
gracefulShutdownTimeoutInSeconds: 20
faultyScaleDownTimeoutInSeconds: 0
scaleUpSnoozeTimeInSeconds: 40
minChangeIntervalInSeconds: 50
backoffFactor: 1.25
maxBackoffInSeconds: 60
)";

TEST(ElasticValues, a_file_is_read_with_all_its_values) {
  const PolicyFile file = parsed(kAll);
  ASSERT_THAT(file.mistakes, IsEmpty());
  ElasticConfig config;
  apply_policy_values(file.values, config);
  EXPECT_EQ(config.min_replicas, 2u);
  EXPECT_EQ(config.max_replicas, 8u);
  EXPECT_EQ(config.increment_step, 3u);
  EXPECT_THAT(config.discrete_values, IsEmpty());
  EXPECT_EQ(config.scaling_timeout, milliseconds(1500));
  EXPECT_EQ(config.graceful_shutdown_timeout, seconds(20));
  EXPECT_EQ(config.faulty_scale_down_timeout, seconds(0));
  EXPECT_EQ(config.scale_up_snooze, seconds(40));
  EXPECT_EQ(config.min_between_changes, seconds(50));
  EXPECT_EQ(config.backoff_factor, 1.25);
  EXPECT_EQ(config.max_backoff, seconds(60));
}

TEST(ElasticValues, every_name_has_an_option_and_comes_back_as_it_was_read) {
  const PolicyFile file = parsed(kAll);
  ElasticConfig config;
  apply_policy_values(file.values, config);
  EXPECT_EQ(policy_values(config), file.values);
  EXPECT_EQ(policy_names().size(), file.values.size() + 1) << "and replicaDiscreteValues";
}

TEST(ElasticValues, the_policy_may_stand_under_the_key_that_operators_use_and_sizes_may_be_a_list) {
  const PolicyFile file = parsed("elasticPolicy:\n  minReplicas: 1\n  replicaDiscreteValues: [4, 1, 2, 4]\n");
  ASSERT_THAT(file.mistakes, IsEmpty());
  EXPECT_THAT(file.values, UnorderedElementsAre(Pair("minReplicas", "1"), Pair("replicaDiscreteValues", "4,1,2,4")));
  ElasticConfig config;
  apply_policy_values(file.values, config);
  EXPECT_THAT(config.discrete_values, ElementsAre(1u, 2u, 4u));
  EXPECT_THAT(policy_values(config), testing::Contains(Pair("replicaDiscreteValues", "1,2,4")));
}

TEST(ElasticValues, steps_and_sizes_that_say_the_same_take_each_others_place) {
  ElasticConfig config{.min_replicas = 2, .max_replicas = 8, .increment_step = 2};
  apply_policy_values({{"replicaDiscreteValues", "2,4,8"}}, config);
  EXPECT_EQ(config.increment_step, 1u);
  EXPECT_THAT(brain::mistakes(config), IsEmpty());
  apply_policy_values({{"replicaIncrementStep", "3"}}, config);
  EXPECT_THAT(config.discrete_values, IsEmpty());
  EXPECT_EQ(config.increment_step, 3u);
  apply_policy_values({{"replicaIncrementStep", "3"}, {"replicaDiscreteValues", "2,4"}}, config);
  EXPECT_THAT(brain::mistakes(config), ElementsAre(HasSubstr("say two different things")));
}

TEST(ElasticValues, all_mistakes_are_listed_each_with_its_line) {
  EXPECT_THAT(parsed(R"(minReplicas: 0
maxReplicas: many
minReplica: 2
scalingTimeoutInSeconds: -1
gracefulShutdownTimeoutInSeconds: [1]
replicaDiscreteValues: [1, [2]]
backoffFactor: 0.5
maxBackoffInSeconds: nan
faultyScaleDownTimeoutInSeconds: 5
faultyScaleDownTimeoutInSeconds: 6
)")
                  .mistakes,
              ElementsAre(AllOf(HasSubstr("policy.yaml:1: minReplicas is '0'"), HasSubstr("from 1 to 65536")),
                          HasSubstr("policy.yaml:2: maxReplicas is 'many'"),
                          AllOf(HasSubstr("policy.yaml:3: there is no 'minReplica'"), HasSubstr("backoffFactor")),
                          HasSubstr("policy.yaml:4: scalingTimeoutInSeconds is '-1'; give seconds from 0 to 2592000"),
                          HasSubstr("policy.yaml:5: 'gracefulShutdownTimeoutInSeconds' is one number"),
                          HasSubstr("policy.yaml:6: 'replicaDiscreteValues' is a list of numbers"),
                          HasSubstr("policy.yaml:7: backoffFactor is '0.5'"),
                          HasSubstr("policy.yaml:8: maxBackoffInSeconds is 'nan'"),
                          HasSubstr("policy.yaml:10: 'faultyScaleDownTimeoutInSeconds' is there twice")));
}

TEST(ElasticValues, what_is_no_policy_is_refused_in_a_sentence) {
  for (const char* text : {"", "- 1\n", "elasticPolicy: 3\n", "elasticPolicy: {}\n", "just words\n"}) {
    EXPECT_THAT(parsed(text).mistakes, ElementsAre(HasSubstr("the file is a map of names and values"))) << text;
  }
  EXPECT_THAT(parsed("a: [1\n").mistakes, ElementsAre(HasSubstr("policy.yaml:")));
  EXPECT_THAT(parsed(std::string(kMaxPolicyFileBytes + 1, '#')).mistakes, ElementsAre(HasSubstr("bytes")));
  std::string sizes = "replicaDiscreteValues: [1";
  for (size_t i = 2; i <= kMaxDiscreteValues + 1; ++i) {
    sizes += ", " + std::to_string(i);
  }
  EXPECT_THAT(parsed(sizes + "]\n").mistakes, ElementsAre(HasSubstr("at most 1024")));
}

TEST(ElasticValues, single_settings_are_checked_with_the_same_words) {
  EXPECT_THAT(policy_value_mistakes({{"maxReplicas", "8"}, {"backoffFactor", "3"}}), IsEmpty());
  EXPECT_THAT(policy_value_mistakes({{"maxReplica", "8"}, {"minReplicas", ""}, {"replicaDiscreteValues", "1,,2"}}),
              UnorderedElementsAre(HasSubstr("there is no 'maxReplica'"), HasSubstr("minReplicas is ''"),
                                   HasSubstr("separated by commas")));
}

TEST(ElasticValues, sizes_that_the_nodes_cannot_hold_are_a_mistake) {
  JobSpec spec;
  spec.nnodes = 2;
  spec.max_nodes = 5;
  spec.nproc_per_node = 4;
  spec.ranks_per_replica = 8;
  EXPECT_EQ(replicas_on(spec, 5), 2u) << "the fifth node waits for a sixth";
  ElasticConfig config{.min_replicas = 1, .max_replicas = 2};
  EXPECT_THAT(policy_mistakes(spec, config), IsEmpty());
  config.max_replicas = 3;
  EXPECT_THAT(policy_mistakes(spec, config),
              ElementsAre(AllOf(HasSubstr("maxReplicas 3 is more than 5 nodes with 4 ranks each can hold"),
                                HasSubstr("give at most 2"))));
}

}  // namespace
}  // namespace keepstep::agent
