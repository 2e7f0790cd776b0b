#include "worker/messages.h"

#include <gtest/gtest.h>

namespace keepstep::worker {
namespace {

TEST(MessagesTest, what_is_encoded_is_decoded) {
  Message message{MessageType::kFault, 3, {2, 7}, {{"step", 118}, {"loss_sum", 0.1}}};
  const auto decoded = decode(encode(message));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->type, message.type);
  EXPECT_EQ(decoded->node, 3u);
  EXPECT_EQ(decoded->identity, message.identity);
  EXPECT_EQ(decoded->body, message.body);
}

TEST(MessagesTest, bytes_that_are_no_text_are_replaced_not_refused) {
  const auto decoded = decode(encode({MessageType::kFault, 0, {1, 1}, {{"what", "bad \xff\xfe byte"}}}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_NE(decoded->body.at("what").get<std::string>().find("bad "), std::string::npos);
}

TEST(MessagesTest, a_short_cut_or_foreign_packet_is_refused) {
  const std::string good = encode({MessageType::kParked, 0, {1, 1}, nlohmann::json::object()});
  EXPECT_FALSE(decode("").ok());
  EXPECT_FALSE(decode(good.substr(0, 10)).ok());
  EXPECT_FALSE(decode(good.substr(0, good.size() - 1)).ok());
  EXPECT_FALSE(decode(good + "x").ok());
  std::string other_magic = good;
  other_magic[0] ^= 1;
  EXPECT_FALSE(decode(other_magic).ok());
  std::string other_version = good;
  other_version[4] ^= 1;
  EXPECT_FALSE(decode(other_version).ok());
}

TEST(MessagesTest, a_body_that_is_no_object_is_refused) {
  EXPECT_FALSE(decode(encode({MessageType::kParked, 0, {1, 1}, nlohmann::json::array()})).ok());
}

}  // namespace
}  // namespace keepstep::worker
