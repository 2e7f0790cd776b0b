#include "agent/memory/memory_tier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "agent/memory/shard_vaults_testing.h"
#include "base/checksum.h"

namespace keepstep::agent {
namespace {

constexpr uint64_t kBytes = 3000;
constexpr uint64_t kRoom = 4096;

// Writes as a worker would: `version`, filled with its number.
void write(state::ShardVault vault, brain::Version version, const std::string& text) {
  vault.begin(version);
  std::memset(vault.data(version).data(), static_cast<int>(version), kBytes);
  ASSERT_TRUE(vault.put_text(version, text).ok());
  vault.finish({version, text.size(), state::vault_checksum(vault.data(version)), checksum(text.data(), text.size())});
}

struct MemoryTierTest : ::testing::Test {
  void SetUp() override {
    loop = *EventLoop::create();
    tier = std::make_unique<MemoryTier>(loop, vaults);
  }
  state::ShardVault vault(brain::Rank rank) {
    (void)*vaults.of_size(1, rank, kBytes, kRoom);
    return find(rank);
  }
  state::ShardVault parity(const brain::ParityBlock& block) {
    (void)*vaults.of_size(1, block, kBytes, kRoom);
    return find(block);
  }
  state::ShardVault find(const std::variant<brain::Rank, brain::ParityBlock>& what) {
    for (const ShardVaults::Held& each : vaults.held()) {
      if (each.what == what) {
        return each.view;
      }
    }
    throw std::logic_error("no such vault");
  }
  nlohmann::json ask(const nlohmann::json& question) {
    SetUp();  // a stopped loop cannot run again
    std::optional<nlohmann::json> answer;
    tier->ask(question, [&](nlohmann::json said) {
      answer = std::move(said);
      loop->stop();
    });
    if (!answer.has_value()) {
      loop->run();
    }
    return *answer;
  }

  std::shared_ptr<EventLoop> loop;
  TestVaults vaults;
  std::unique_ptr<MemoryTier> tier;
};

TEST_F(MemoryTierTest, SaysWhatIsWhole) {
  write(vault(2), 7, "seven");
  write(vault(2), 8, "eight");
  write(parity({{2, 5}, 1}), 8, "parity");
  vault(3).begin(8);
  const auto found = holdings_from(4, ask({{"do", "hold"}}));
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 3);
  for (const brain::Holding& each : *found) {
    EXPECT_EQ(each.node, 4);
    EXPECT_EQ(each.sharding, 1);
    EXPECT_EQ(each.bytes, kBytes);
  }
  EXPECT_EQ((*found)[0].version, 7);
  EXPECT_EQ(std::get<brain::Rank>((*found)[1].what), 2);
  EXPECT_EQ(std::get<brain::ParityBlock>((*found)[2].what), (brain::ParityBlock{{2, 5}, 1}));
}

TEST_F(MemoryTierTest, WhatCannotBeIsNotTakenFromAnotherNode) {
  const nlohmann::json line = {{"sharding", 1}, {"version", 8}, {"bytes", 10}, {"age_ns", 5}, {"rank", 1}};
  const auto of = [](nlohmann::json with) { return nlohmann::json{{"held", {std::move(with)}}}; };
  EXPECT_TRUE(holdings_from(1, of(line)).ok());
  for (const auto& [name, value] : std::vector<std::pair<const char*, nlohmann::json>>{
           {"rank", -1}, {"rank", 1 << 21}, {"bytes", uint64_t{1} << 50}, {"age_ns", -1}, {"members", {1, 1}}}) {
    nlohmann::json bad = line;
    bad[name] = value;
    bad["row"] = 0;
    EXPECT_TRUE(absl::IsInvalidArgument(holdings_from(1, of(bad)).status())) << bad;
  }
  EXPECT_THROW((void)holdings_from(1, of({{"rank", 1}})), nlohmann::json::exception);
}

TEST_F(MemoryTierTest, GivesTheTextsOfShards) {
  write(vault(2), 8, "two at eight");
  write(vault(5), 8, "five at eight");
  vault(5).text_slot(8)[0] ^= std::byte{1};
  const nlohmann::json answer =
      ask({{"do", "texts"}, {"version", 8}, {"sharding", 1}, {"ranks", std::vector<int>{2, 5, 6}}});
  const nlohmann::json& texts = answer.at("texts");
  ASSERT_EQ(texts.size(), 3);
  EXPECT_EQ(texts[0].at("text"), "two at eight");
  EXPECT_EQ(texts[1].at("result"), "corrupt");
  EXPECT_EQ(texts[2].at("result"), "gone");
  EXPECT_EQ(
      ask({{"do", "texts"}, {"version", 6}, {"sharding", 1}, {"ranks", std::vector<int>{2}}})["texts"][0]["result"],
      "gone");
}

TEST_F(MemoryTierTest, TextsThatAreTooManyForOneAnswerAreLeftOutAndATooLongOneRefused) {
  const auto write_text = [&](brain::Rank rank, size_t bytes) {
    (void)*vaults.of_size(1, rank, kBytes, bytes);
    write(find(rank), 8, std::string(bytes, 'x'));
  };
  write_text(1, kMemoryTextBytes / 2);
  write_text(2, kMemoryTextBytes / 2 + 1);
  write_text(3, kMaxTextBytes + 1);
  const auto texts = [&](std::vector<int> ranks) {
    return ask({{"do", "texts"}, {"version", 8}, {"sharding", 1}, {"ranks", std::move(ranks)}});
  };
  EXPECT_EQ(texts({1, 2}).at("texts").size(), 1);
  EXPECT_EQ(texts({2, 1}).at("texts").size(), 1);
  EXPECT_FALSE(texts({3}).at("ok"));
}

TEST_F(MemoryTierTest, ReadsEverythingAndNamesWhatIsCorrupt) {
  write(vault(2), 7, "a");
  write(vault(2), 8, "b");
  write(parity({{2, 5}, 1}), 8, "c");
  find(brain::ParityBlock{{2, 5}, 1}).data(8)[100] ^= std::byte{1};
  const nlohmann::json answer = ask({{"do", "check"}, {"node", 0}});
  EXPECT_TRUE(answer.at("over"));
  ASSERT_EQ(answer.at("checked").size(), 3);
  EXPECT_EQ(answer["checked"][0].at("result"), "good");
  EXPECT_EQ(answer["checked"][0].at("version"), 8);
  EXPECT_EQ(answer["checked"][1].at("version"), 7);
  EXPECT_EQ(answer["checked"][2].at("result"), "corrupt");
  EXPECT_EQ(answer["checked"][2].at("members"), (std::vector<int>{2, 5}));
  const nlohmann::json one = ask({{"do", "check"}, {"version", 7}, {"after", uint64_t{0}}});
  ASSERT_EQ(one.at("checked").size(), 1);
  EXPECT_EQ(one["checked"][0].at("result"), "good");
  EXPECT_TRUE(ask({{"do", "check"}, {"after", one.at("last")}})["checked"].empty());
}

TEST_F(MemoryTierTest, OneReadsAtATimeAndWhatIsNotUnderstoodIsRefused) {
  write(vault(2), 7, "a");
  std::vector<nlohmann::json> answers;
  const auto collect = [&](nlohmann::json said) {
    answers.push_back(std::move(said));
    if (answers.size() == 2) {
      loop->stop();
    }
  };
  tier->ask({{"do", "check"}}, collect);
  tier->ask({{"do", "check"}}, collect);
  loop->run();
  EXPECT_FALSE(answers[0].at("ok"));  // answers the second question
  EXPECT_TRUE(answers[1].at("ok"));
  EXPECT_FALSE(ask({{"do", "away"}}).at("ok"));
  EXPECT_THROW(tier->ask({{"version", 1}}, collect), nlohmann::json::exception);
}

}  // namespace
}  // namespace keepstep::agent
