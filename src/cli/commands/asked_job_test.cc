#include "cli/commands/asked_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/token.h"

namespace keepstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

Environ with_token(const std::string& token) {
  return [token](const std::string& name) {
    return name == "KEEPSTEP_TOKEN" && !token.empty() ? std::optional(token) : std::nullopt;
  };
}

TEST(AskedJob, host_and_port_are_an_endpoint_and_the_rest_is_looked_for_on_this_machine) {
  const AskedJob named = asked_job("node-a:29400", {}, with_token(std::string(32, 't')));
  EXPECT_THAT(named.mistakes, IsEmpty());
  ASSERT_TRUE(named.endpoint);
  EXPECT_EQ(named.endpoint->text(), "node-a:29400");
  ASSERT_TRUE(named.token);
  EXPECT_EQ(named.token->secret(), std::string(32, 't'));
  EXPECT_EQ(asked_job("[fd00::7]:1", {}, with_token(std::string(32, 't'))).endpoint->host, "fd00::7");
  for (const char* word : {"", "train-4f2a", "4711", "out/run", "node-a"}) {
    const AskedJob here = asked_job(word, {}, with_token(""));
    EXPECT_FALSE(here.endpoint) << word;
    EXPECT_THAT(here.mistakes, IsEmpty()) << word;
  }
}

TEST(AskedJob, a_folder_with_a_colon_in_its_name_is_a_folder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / ("run:" + to_hex(random_nonce()));
  std::filesystem::create_directory(folder);
  const AskedJob job = asked_job(folder, {}, with_token(""));
  EXPECT_THAT(job.mistakes, IsEmpty());
  EXPECT_FALSE(job.endpoint);
  std::filesystem::remove(folder);
}

TEST(AskedJob, all_mistakes_of_an_endpoint_are_listed) {
  for (const char* word : {"node-a:", ":29400", "node-a:0", "node-a:70000", "node-a:http", "fd00::7", "[fd00::7]"}) {
    EXPECT_THAT(asked_job(word, {}, with_token("")).mistakes,
                UnorderedElementsAre(HasSubstr("no HOST:PORT with a port from 1 to 65535"), HasSubstr("no job token")))
        << word;
  }
}

TEST(AskedJob, the_token_is_given_as_to_the_launchers) {
  const std::string file = testing::TempDir() + "token-" + to_hex(random_nonce());
  std::ofstream(file) << std::string(32, 'f') << "\n";
  chmod(file.c_str(), 0600);
  EXPECT_EQ(
      asked_job("node-a:1", {.token_file = file}, with_token("the token of the environment, unread")).token->secret(),
      std::string(32, 'f'));
  chmod(file.c_str(), 0644);
  EXPECT_THAT(asked_job("node-a:1", {.token_file = file}, with_token("")).mistakes,
              ElementsAre(HasSubstr("chmod 600")));
  std::filesystem::remove(file);
  EXPECT_THAT(asked_job("node-a:1", {.token_file = file}, with_token("the token of the environment")).mistakes,
              ElementsAre(HasSubstr("cannot be read")));
  EXPECT_THAT(asked_job("node-a:1", {}, with_token("s3cret")).mistakes, ElementsAre(Not(HasSubstr("s3cret"))));
}

TEST(AskedJob, the_options_of_its_key_are_taken_with_their_values) {
  const std::vector<std::string> args = {"--rdzv-id", "run 7", "job", "--token-file=t", "--rdzv-id"};
  KeyOptions key;
  std::vector<std::string> others;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!key.take(args, i)) {
      others.push_back(args[i]);
    }
  }
  EXPECT_EQ(key.rdzv_id, "run 7");
  EXPECT_EQ(key.token_file, "t");
  EXPECT_THAT(others, ElementsAre("job", "--rdzv-id"));
  EXPECT_EQ(asked_job("node-a:1", key, with_token("")).rdzv_id, "run 7");
}

}  // namespace
}  // namespace keepstep::cli
