#include "agent/workers/message_parts.h"

#include <gtest/gtest.h>

namespace keepstep::agent {
namespace {

std::string text_of(size_t bytes) {
  std::string text(bytes, 'a');
  for (size_t i = 0; i < bytes; i += 1000) {
    text[i] = static_cast<char>('b' + i / 1000 % 20);
  }
  return text;
}

TEST(MessageParts, a_short_message_is_one_part_and_the_message_itself) {
  EXPECT_EQ(*in_parts("S{}"), std::vector<std::string>{"S{}"});
  EXPECT_EQ(in_parts(std::string(kPartBytes, 'x'))->size(), 1U);
}

TEST(MessageParts, long_messages_of_several_senders_come_whole_though_their_parts_mix) {
  const std::string one = text_of(kPartBytes + 1);
  const std::string other = text_of(kMaxPartedBytes);
  const auto first = *in_parts(one);
  const auto second = *in_parts(other);
  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(second.size(), 10U);
  PartJoiner joiner;
  std::optional<std::string> came;
  for (size_t i = 0; i < second.size(); ++i) {
    if (i < 2) {
      const auto whole = joiner.add(1, first[i]);
      ASSERT_TRUE(whole.ok()) << whole.status();
      EXPECT_EQ(whole->has_value(), i == 1);
      came = i == 1 ? *whole : came;
    }
    const auto whole = joiner.add(2, second[i]);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(whole->has_value(), i == 9);
    EXPECT_TRUE(i < 9 || **whole == other);
  }
  EXPECT_TRUE(came == one);
}

TEST(MessageParts, what_a_sender_left_unfinished_is_dropped_when_it_begins_anew) {
  const auto parts = *in_parts(text_of(2 * kPartBytes + 5));
  PartJoiner joiner;
  EXPECT_TRUE(joiner.add(1, parts[0]).ok());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE((*joiner.add(1, parts[i])).has_value());
  }
  EXPECT_EQ((*joiner.add(1, parts[2]))->size(), 2 * kPartBytes + 5);
}

TEST(MessageParts, what_no_agent_sends_is_refused) {
  PartJoiner joiner;
  for (const char* bad :
       {"M", "M0", "M0/", "M0/2", "M2/2:x", "M0/1:x", "M0/11:x", "M-1/2:x", "M0/99999999999999:x", "x"}) {
    EXPECT_FALSE(joiner.add(1, bad).ok()) << bad;
  }
  EXPECT_FALSE(joiner.add(1, "M1/2:x").ok()) << "without the first";
  EXPECT_TRUE(joiner.add(1, "M0/3:x").ok());
  EXPECT_FALSE(joiner.add(1, "M1/2:x").ok()) << "another count";
  EXPECT_FALSE(joiner.add(1, "M1/3:x").ok()) << "dropped by then";
  EXPECT_FALSE(joiner.add(1, "M0/2:" + std::string(kPartBytes + 1, 'x')).ok()) << "too long";
  EXPECT_FALSE(in_parts(std::string(kMaxPartedBytes + 1, 'x')).ok());
}

}  // namespace
}  // namespace keepstep::agent
