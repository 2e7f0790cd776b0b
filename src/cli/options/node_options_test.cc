// The options of `keepstep node`.
#include "cli/options/node_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace keepstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

NodeOptions parse(const std::vector<std::string>& args, const std::string& token = std::string(40, 't')) {
  return parse_node(args, [&](const std::string& name) {
    return name == "KEEPSTEP_TOKEN" && !token.empty() ? std::optional(token) : std::nullopt;
  });
}

TEST(NodeOptionsTest, one_node_needs_only_the_jobs_name) {
  const NodeOptions options = parse({"--job", "a/b"}, "");
  EXPECT_THAT(options.mistakes, IsEmpty());
  EXPECT_EQ(options.job, "a/b");
  EXPECT_FALSE(options.nodes.has_value());
}

TEST(NodeOptionsTest, several_nodes) {
  const NodeOptions options = parse({"--job", "j", "--nodes", "10.0.0.7:29411,[fd00::8]:29411", "--node", "1"});
  ASSERT_THAT(options.mistakes, IsEmpty());
  EXPECT_THAT(options.nodes->addresses, ElementsAre(SocketAddress{"10.0.0.7", 29411}, SocketAddress{"fd00::8", 29411}));
  EXPECT_EQ(options.nodes->self, 1U);
  EXPECT_EQ(options.nodes->token.secret(), std::string(40, 't'));
}

TEST(NodeOptionsTest, mistakes_are_named) {
  EXPECT_THAT(parse({}).mistakes, ElementsAre(HasSubstr("--job NAME is missing")));
  EXPECT_THAT(parse({"--job"}).mistakes, ElementsAre("--job needs a value"));
  EXPECT_THAT(parse({"--jobs", "x"}).mistakes, ElementsAre("'--jobs' is no option"));
  EXPECT_THAT(parse({"--job", "j", "--nodes", "node7:1,1.2.3.4", "--node", "0"}).mistakes,
              ElementsAre(HasSubstr("'node7:1'"), HasSubstr("'1.2.3.4'")));
  EXPECT_THAT(parse({"--job", "j", "--nodes", "1.2.3.4:5,1.2.3.4:5", "--node", "0"}).mistakes,
              ElementsAre(HasSubstr("'1.2.3.4:5' twice")));
  for (const char* node : {"1", "-1", "x"}) {
    EXPECT_THAT(parse({"--job", "j", "--nodes", "1.2.3.4:5", "--node", node}).mistakes,
                ElementsAre(HasSubstr("--nodes has 1 addresses")))
        << node;
  }
  EXPECT_THAT(parse({"--job", "j", "--node", "0"}).mistakes, ElementsAre(HasSubstr("--nodes has 0 addresses")));
  EXPECT_THAT(parse({"--job", "j", "--nodes", "1.2.3.4:5", "--node", "0"}, "").mistakes,
              ElementsAre(HasSubstr("KEEPSTEP_STORE_TOKEN_FILE")));
  EXPECT_THAT(parse({"--job", "j", "--nodes", "1.2.3.4:5", "--node", "0"}, "short").mistakes,
              ElementsAre(HasSubstr("KEEPSTEP_TOKEN")));
}

}  // namespace
}  // namespace keepstep::cli
