#include "messages/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "messages/agent_messages.h"
#include "messages/rank_messages.h"
#include "messages/ring_messages.h"

namespace keepstep::messages {
namespace {

using ::testing::HasSubstr;

std::string why_not(std::string_view text) { return std::string(read<FromRank>(text).status().message()); }

nlohmann::json fields_of(const std::string& text) { return nlohmann::json::parse(text.substr(text.find(' '))); }

TEST(SchemaTest, a_message_is_its_name_and_its_fields) {
  EXPECT_EQ(write(Settled{7}), R"(settled {"sharding":7})");
  EXPECT_EQ(write(Formed{}), "formed {}");
  EXPECT_EQ(name_of(write(Settled{7})), "settled");
  const auto came = read<FromRank>(write(Ready{brain::StateKind::kClean, uint64_t{1} << 60, true}));
  ASSERT_TRUE(came.ok()) << came.status();
  const auto& ready = std::get<Ready>(*came);
  EXPECT_EQ(ready.state, brain::StateKind::kClean);
  EXPECT_EQ(ready.version, uint64_t{1} << 60);
  EXPECT_TRUE(ready.sharded);
}

TEST(SchemaTest, values_of_other_modules_and_what_may_be_missing_come_as_they_were) {
  VaultQuestion question{.id = 3, .sharding = 2, .block = brain::ParityBlock{{0, 4, 7}, 1}, .data_bytes = 4096};
  const auto asked = std::get<VaultQuestion>(*read<FromRank>(write(question)));
  EXPECT_EQ(asked.block, question.block);
  EXPECT_EQ(asked.version, std::nullopt);
  EXPECT_EQ(asked.data_bytes, 4096u);
  brain::RankProgress rank;
  rank.what = "all_reduce";
  rank.waits = brain::WaitsIn::kCollective;
  rank.still_for = std::chrono::milliseconds(5);
  const auto report = std::get<WaitingRanks>(*read<ByAny>(write(WaitingRanks{{1, 2}, {rank}})));
  EXPECT_EQ(report.identity, (brain::Identity{1, 2}));
  EXPECT_EQ(report.ranks.at(0).what, "all_reduce");
  EXPECT_EQ(report.ranks.at(0).still_for, rank.still_for);
}

TEST(SchemaTest, text_that_is_not_utf8_is_replaced_and_bytes_come_as_they_were) {
  const auto fault = std::get<Faulted>(*read<FromRank>(write(Faulted{.what = "bad \xff\xfe byte"})));
  EXPECT_THAT(fault.what, HasSubstr("bad "));
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
  }
  EXPECT_EQ(std::get<KeyAnswer>(*read<ByAny>(write(KeyAnswer{.value = {all}}))).value.bytes, all);
}

TEST(SchemaTest, what_is_no_message_is_refused_and_named) {
  EXPECT_THAT(why_not(""), HasSubstr("no JSON object"));
  EXPECT_THAT(why_not("settled"), HasSubstr("'settled': its fields are no JSON object"));
  EXPECT_THAT(why_not("settled {"), HasSubstr("no JSON object"));
  EXPECT_THAT(why_not("settled []"), HasSubstr("no JSON object"));
  EXPECT_THAT(why_not("dance {}"), HasSubstr("'dance': nobody expects it here"));
  EXPECT_THAT(why_not(write(Release{})), HasSubstr("'release': nobody expects it here"));
  EXPECT_THAT(why_not(std::string(1000, 'x') + " {}"), HasSubstr("nobody expects it here"));
  EXPECT_LT(why_not(std::string(1000, 'x') + " {}").size(), 200u);
}

TEST(SchemaTest, every_field_is_there_within_its_type_and_no_other) {
  EXPECT_EQ(why_not(R"(settled {"sharding": 4294967295})"), "");
  EXPECT_THAT(why_not("settled {}"), HasSubstr("'settled': the field 'sharding' is missing"));
  EXPECT_THAT(why_not(R"(settled {"sharding": 1, "more": 0})"), HasSubstr("a field that nobody knows"));
  EXPECT_THAT(why_not(R"(formed {"more": 0})"), HasSubstr("a field that nobody knows"));
  for (const char* value :
       {"null", "\"1\"", "[1]", "{}", "true", "-1", "1.0", "1.5", "4294967296", "18446744073709551616", "1e300"}) {
    EXPECT_THAT(why_not(absl::StrFormat(R"(settled {"sharding": %s})", value)),
                HasSubstr("'settled': the field 'sharding' has the wrong type or value"))
        << value;
  }
}

TEST(SchemaTest, each_type_takes_its_own_values_only) {
  const auto asked = [](const char* field, const char* value) {
    nlohmann::json fields = fields_of(write(VaultQuestion{}));
    fields[field] = nlohmann::json::parse(value);
    return read<FromRank>("vault_question " + fields.dump()).ok();
  };
  EXPECT_TRUE(asked("id", "18446744073709551615"));
  EXPECT_FALSE(asked("id", "-1"));
  EXPECT_TRUE(asked("version", "null"));
  EXPECT_TRUE(asked("version", "5"));
  EXPECT_FALSE(asked("version", "5.0"));
  EXPECT_TRUE(asked("block", R"({"members": [1, 2], "row": 0})"));
  EXPECT_FALSE(asked("block", R"({"members": [1, 2]})"));
  EXPECT_FALSE(asked("block", R"({"members": [1, -2], "row": 0})"));
  EXPECT_FALSE(asked("block", R"({"members": 1, "row": 0})"));
  const auto hydrated = [](const char* field, const char* value) {
    nlohmann::json fields = fields_of(write(Hydrated{}));
    fields[field] = nlohmann::json::parse(value);
    return read<FromRank>("hydrated " + fields.dump()).ok();
  };
  EXPECT_TRUE(hydrated("bytes", "9223372036854775807"));
  EXPECT_TRUE(hydrated("bytes", "-9223372036854775808"));
  EXPECT_FALSE(hydrated("bytes", "9223372036854775808"));
  EXPECT_TRUE(hydrated("seconds", "2"));
  EXPECT_FALSE(hydrated("seconds", "null"));
  EXPECT_TRUE(read<FromRank>(R"(ready {"state": 255, "version": 0, "sharded": false})").ok());
  EXPECT_FALSE(read<FromRank>(R"(ready {"state": 256, "version": 0, "sharded": false})").ok());
  EXPECT_FALSE(read<FromRank>(R"(ready {"state": 2, "version": 0, "sharded": 0})").ok());
  EXPECT_TRUE(read<FromRank>(R"(attach {"fingerprint": {"cpu": "x"}})").ok());
  EXPECT_FALSE(read<FromRank>(R"(attach {"fingerprint": {"cpu": 1}})").ok());
  EXPECT_FALSE(read<FromRank>(R"(attach {"fingerprint": ["x"]})").ok());
  EXPECT_FALSE(read<ByFirst>(R"(memory_question {"id": 1, "question": []})").ok());
  EXPECT_TRUE(read<ByFirst>(R"(grace {"grace": 5000000000})").ok());
  EXPECT_FALSE(read<ByFirst>(R"(grace {"grace": 0.5})").ok());
  const auto store = [](const char* key) {
    return read<FromRank>(
               absl::StrFormat(
                   R"(store_question {"id": 1, "op": "get", "key": "%s", "value": {"here": "", "beside": 0}})", key))
        .ok();
  };
  EXPECT_TRUE(store("00fE"));
  EXPECT_FALSE(store("0"));
  EXPECT_FALSE(store("zz"));
}

TEST(SchemaTest, what_is_nested_beyond_all_sense_is_refused_and_nothing_more) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  const std::string object = "{\"a\": " + deep + "}";
  EXPECT_THAT(why_not("attach {\"fingerprint\": " + deep + "}"), HasSubstr("nested too deeply"));
  EXPECT_FALSE(read<ByFirst>("memory_question {\"id\": 1, \"question\": " + object + "}").ok());
  EXPECT_FALSE(read<ToFirst>("memory_answer {\"id\": 1, \"answer\": " + object + "}").ok());
  EXPECT_TRUE(read<ToFirst>(R"(memory_answer {"id": 1, "answer": {"a": [[[[[{"b": 1}]]]]]}})").ok());
}

template <typename... Messages>
std::vector<std::string_view> names(std::type_identity<std::variant<Messages...>>) {
  return {Messages::kName...};
}

TEST(SchemaTest, who_reads_one_kind_of_message_can_tell_each_from_the_others) {
  const auto different = [](std::vector<std::string_view> all) {
    std::ranges::sort(all);
    return std::ranges::adjacent_find(all) == all.end();
  };
  EXPECT_TRUE(different(names(std::type_identity<FromRank>())));
  EXPECT_TRUE(different(names(std::type_identity<ToRank>())));
  EXPECT_TRUE(different(names(std::type_identity<ToService>())));
  EXPECT_TRUE(different(names(std::type_identity<FromService>())));
  EXPECT_TRUE(different(names(std::type_identity<FromReader>())));
  std::vector<std::string_view> agents = names(std::type_identity<ToFirst>());
  for (const auto& more : {names(std::type_identity<ByFirst>()), names(std::type_identity<ByAny>())}) {
    agents.insert(agents.end(), more.begin(), more.end());
  }
  EXPECT_TRUE(different(agents));
}

}  // namespace
}  // namespace keepstep::messages
