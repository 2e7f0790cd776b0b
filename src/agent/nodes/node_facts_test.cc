#include "agent/nodes/node_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace keepstep::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeFacts : public testing::Test {
 protected:
  NodeFacts() {
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-facts-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~NodeFacts() override { std::filesystem::remove_all(dir_); }
  JobSpec with_script(const std::string& folder, const std::string& text) {
    std::filesystem::create_directories(dir_ / folder);
    JobSpec spec;
    spec.script = dir_ / folder / "train.py";
    std::ofstream(spec.script) << text;
    return spec;
  }
  std::filesystem::path dir_;
};

TEST_F(NodeFacts, the_same_text_elsewhere_is_the_same_script) {
  EXPECT_THAT(
      differences(node_facts(with_script("a", "x = 1\n"), "1"), node_facts(with_script("b", "x = 1\n"), "1"), "node 1"),
      IsEmpty());
}

TEST_F(NodeFacts, every_difference_is_named_with_both_values) {
  const JobSpec first = with_script("a", "x = 1\n");
  JobSpec other = with_script("b", "x = 2\n");
  EXPECT_THAT(differences(node_facts(first, "1"), node_facts(other, "1"), "node 1 (b)"),
              ElementsAre(HasSubstr("the script is 'train.py with checksum ")));
  other = first;
  other.nproc_per_node = 3;
  other.node_rank = 1;  // always differs
  EXPECT_THAT(differences(node_facts(first, "1"), node_facts(other, "2"), "node 1 (b)"),
              ElementsAre("--nproc-per-node is '3' on node 1 (b) and '1' on node 0",
                          "keepstep's version is '2' on node 1 (b) and '1' on node 0"));
}

TEST_F(NodeFacts, nodes_agree_on_the_range_of_nodes_and_on_replicas_and_the_rest_of_the_policy_is_node_0s) {
  JobSpec first = with_script("a", "");
  first.nnodes = 2;
  first.max_nodes = 8;
  first.nproc_per_node = first.ranks_per_replica = 4;
  first.elastic.emplace().max_replicas = 8;
  JobSpec other = first;
  other.elastic->min_replicas = 2;
  other.elastic->scaling_timeout = std::chrono::seconds(7);
  EXPECT_THAT(differences(node_facts(first, "1"), node_facts(other, "1"), "node 1"), IsEmpty());
  other.max_nodes = 6;
  other.ranks_per_replica = 2;
  EXPECT_THAT(differences(node_facts(first, "1"), node_facts(other, "1"), "node 1"),
              ElementsAre("--nnodes is '2:6' on node 1 and '2:8' on node 0",
                          "--ranks-per-replica is '2' on node 1 and '4' on node 0"));
  other = first;
  other.elastic.reset();
  EXPECT_THAT(differences(node_facts(first, "1"), node_facts(other, "1"), "node 1"),
              ElementsAre("--nnodes is '2' on node 1 and '2:8' on node 0",
                          "the job's size (options of elastic jobs) is 'fixed' on node 1 and 'elastic' on node 0"));
}

TEST_F(NodeFacts, what_another_version_does_not_say_differs) {
  EXPECT_THAT(differences(node_facts(with_script("a", ""), "1"), {}, "node 1"),
              testing::Contains("--seed is 'unknown' on node 1 and '0' on node 0"));
}

}  // namespace
}  // namespace keepstep::agent
