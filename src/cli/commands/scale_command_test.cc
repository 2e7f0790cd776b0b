#include "cli/commands/scale_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace keepstep::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ScaleCommand, a_job_and_a_size_or_auto) {
  const ScaleRequest six = parse_scale({"train-4f2a", "--to", "6"});
  EXPECT_THAT(six.mistakes, IsEmpty());
  EXPECT_EQ(six.job, "train-4f2a");
  EXPECT_EQ(six.replicas, 6u);
  const ScaleRequest automatic = parse_scale({"--to=auto"});
  EXPECT_THAT(automatic.mistakes, IsEmpty());
  EXPECT_TRUE(automatic.to);
  EXPECT_FALSE(automatic.replicas.has_value());
  const ScaleRequest alone = parse_scale({"--json"});
  EXPECT_FALSE(alone.to);
  EXPECT_TRUE(alone.as_json);
  EXPECT_EQ(alone.job, "");
}

TEST(ScaleCommand, settings_beside_a_file_win_and_so_does_their_way_to_say_sizes) {
  std::string name = (std::filesystem::temp_directory_path() / "keepstep-policy-XXXXXX").string();
  close(mkstemp(name.data()));
  std::ofstream(name) << "minReplicas: 1\nmaxReplicas: 8\nreplicaIncrementStep: 7\n";
  const ScaleRequest request =
      parse_scale({"--policy", name, "--set", "minReplicas=2", "--set=replicaDiscreteValues=2,8", "job"});
  std::filesystem::remove(name);
  EXPECT_THAT(request.mistakes, IsEmpty());
  EXPECT_EQ(request.job, "job");
  EXPECT_THAT(request.policy, UnorderedElementsAre(Pair("minReplicas", "2"), Pair("maxReplicas", "8"),
                                                   Pair("replicaDiscreteValues", "2,8")));
}

TEST(ScaleCommand, all_mistakes_are_listed) {
  EXPECT_THAT(parse_scale({"a", "b", "--to", "0", "--set", "minReplica=2", "--set", "maxReplicas", "--set",
                           "backoffFactor=x", "--policy", "/no/such/file", "--colour", "--to"})
                  .mistakes,
              UnorderedElementsAre(HasSubstr("'b' is one job too many"), HasSubstr("--to is '0'"),
                                   HasSubstr("did you mean minReplicas?"), HasSubstr("give NAME=VALUE"),
                                   HasSubstr("--set backoffFactor is 'x'"), HasSubstr("cannot be read"),
                                   HasSubstr("'--colour' is no option"), HasSubstr("--to needs a value"),
                                   HasSubstr("one after the other")));
  EXPECT_THAT(parse_scale({"--set", "minReplicas=1", "--set", "minReplicas=2"}).mistakes,
              ElementsAre(HasSubstr("given twice")));
}

nlohmann::json answer() {
  return {{"ok", true},
          {"job", "train-4f2a"},
          {"step", 118},
          {"replicas", 2},
          {"ranks", 8},
          {"ranks_per_replica", 4},
          {"min", 2},
          {"max", 8},
          {"sizes", {2, 4, 6, 8}},
          {"asked_for", nullptr},
          {"nodes",
           {{{"node", 0}, {"name", "a"}, {"ranks", 4}},
            {{"node", 1}, {"name", "b"}, {"ranks", 4}},
            {{"node", 5}, {"name", "c"}, {"ranks", 0}}}},
          {"max_nodes", 8},
          {"policy", {{"minReplicas", "2"}, {"maxReplicas", "8"}, {"replicaIncrementStep", "2"}}},
          {"last", {{"event", "size_kept"}, {"because", "3 are ready; the next size is 4"}, {"seconds_ago", 2.6}}}};
}

TEST(ScaleCommand, the_size_is_shown_with_its_bounds_its_nodes_and_what_is_waited_for) {
  EXPECT_EQ(size_as_text(answer()), R"(train-4f2a: 2 replicas of 4 ranks, as many as the policy finds; step 118
  sizes    2 to 8: 2, 4, 6, 8
  nodes    3 of at most 8
    0 (a): 4 ranks
    1 (b): 4 ranks
    5 (c): waits, without ranks
  policy
    minReplicas                        2
    maxReplicas                        8
    replicaIncrementStep               2
  last, 3 s ago: size_kept: 3 are ready; the next size is 4
)");
}

TEST(ScaleCommand, a_size_that_was_asked_for_is_said_and_a_long_list_is_cut) {
  nlohmann::json many = answer();
  many["asked_for"] = 6;
  many["sizes"] = nlohmann::json::array();
  for (uint32_t size = 2; size <= 99; ++size) {
    many["sizes"].push_back(size);
  }
  many["last"]["event"] = "";
  EXPECT_THAT(size_as_text(many), AllOf(HasSubstr("6 asked for (--to auto ends that)"), HasSubstr(", 11, ..., 99\n"),
                                        Not(HasSubstr("last"))));
  many.erase("policy");
  EXPECT_THROW(size_as_text(many), nlohmann::json::exception);
}

}  // namespace
}  // namespace keepstep::cli
