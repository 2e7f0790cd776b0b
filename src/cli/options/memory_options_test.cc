// The options of `keepstep memory serve`.
#include "cli/options/memory_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kTotal = uint64_t{64} << 30;

MemoryOptions parse(const std::vector<std::string>& args, const std::map<std::string, std::string>& environment = {}) {
  return parse_memory_serve(
      args,
      [&](const std::string& name) {
        const auto found = environment.find(name);
        return found == environment.end() ? std::nullopt : std::optional(found->second);
      },
      kTotal);
}

TEST(MemoryOptionsTest, sizes) {
  EXPECT_EQ(memory_bytes("8GiB", kTotal), uint64_t{8} << 30);
  EXPECT_EQ(memory_bytes("500MB", kTotal), 500'000'000);
  EXPECT_EQ(memory_bytes("25%", kTotal), kTotal / 100 * 25);
  EXPECT_EQ(memory_bytes("1048576", kTotal), 1048576);
  for (const char* wrong : {"", "8", "8 GiB", "-8GiB", "8GB!", "95%", "0%", "%", "99999999TiB", "GiB"}) {
    EXPECT_EQ(memory_bytes(wrong, kTotal), std::nullopt) << wrong;
  }
}

TEST(MemoryOptionsTest, lifetimes) {
  EXPECT_EQ(memory_lifetime("90"), std::chrono::seconds(90));
  EXPECT_EQ(memory_lifetime("90s"), std::chrono::seconds(90));
  EXPECT_EQ(memory_lifetime("2d"), std::chrono::hours(48));
  EXPECT_EQ(memory_lifetime("never"), std::chrono::seconds(0));
  for (const char* wrong : {"", "0", "soon", "1w", "-1h", "99999999999h"}) {
    EXPECT_EQ(memory_lifetime(wrong), std::nullopt) << wrong;
  }
}

TEST(MemoryOptionsTest, options_come_before_variables_and_those_before_defaults) {
  const MemoryOptions plain = parse({});
  EXPECT_THAT(plain.mistakes, IsEmpty());
  EXPECT_EQ(plain.limit_bytes, kTotal / 100 * kMemoryPercent);
  EXPECT_EQ(plain.lifetime, kMemoryLifetime);
  const std::map<std::string, std::string> variables = {{"KEEPSTEP_MEMORY_LIMIT", "1GiB"},
                                                        {"KEEPSTEP_MEMORY_LIFETIME", "1h"},
                                                        {"KEEPSTEP_MEMORY_PEERS", "10.0.0.1:1,10.0.0.2:2"},
                                                        {"KEEPSTEP_TOKEN", std::string(40, 'x')}};
  const MemoryOptions given = parse({"--limit=2GiB", "--peer", "[::1]:3", "--peer", "10.0.0.4:4"}, variables);
  EXPECT_THAT(given.mistakes, IsEmpty());
  EXPECT_EQ(given.limit_bytes, uint64_t{2} << 30);
  EXPECT_EQ(given.lifetime, std::chrono::hours(1));
  EXPECT_THAT(given.peers, ElementsAre(SocketAddress{"::1", 3}, SocketAddress{"10.0.0.4", 4}));
  EXPECT_EQ(parse({}, variables).peers.size(), 2);
}

TEST(MemoryOptionsTest, mistakes_are_listed_and_peers_need_a_token) {
  EXPECT_THAT(parse({"--peer", "10.0.0.1:1"}).mistakes, ElementsAre(HasSubstr("need the token")));
  EXPECT_THAT(parse({"--limit", "huge", "--peer", "host:1", "--lifetim", "1h"}).mistakes.size(), 4);
  EXPECT_THAT(parse({"--limit"}).mistakes, ElementsAre("--limit needs a value"));
}

}  // namespace
}  // namespace keepstep::cli
