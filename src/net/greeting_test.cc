#include "net/greeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Greeting kFromA{
    .role = Role::kConnects, .from = "agent 3", .to = "coordinator", .term = 2, .generation = 5, .stream = 1};

std::string difference(const Greeting& got) {
  const Status status = check_greeting(kFromA, got, "10.0.0.7:4711");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

TEST(GreetingTest, it_comes_back_from_its_bytes_whatever_is_in_it) {
  Greeting extreme{.role = Role::kAccepts,
                   .from = std::string(Greeting::kMaxNameBytes, '\0'),
                   .to = "",
                   .term = UINT32_MAX,
                   .generation = 1u << 31,
                   .stream = UINT64_MAX - 1};
  for (const Greeting& greeting : {kFromA, extreme}) {
    const StatusOr<std::string> bytes = greeting.encode();
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_LE(bytes->size(), Greeting::kMaxBytes);
    const StatusOr<Greeting> same = Greeting::decode(*bytes);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(*same, greeting);
  }
  extreme.to = std::string(Greeting::kMaxNameBytes + 1, 'x');
  EXPECT_EQ(extreme.encode().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GreetingTest, its_bytes_are_those_of_the_header) {
  EXPECT_EQ(to_hex(kFromA.encode().value()),
            "4b534731"
            "01"
            "00"
            "02000000"
            "05000000"
            "0100000000000000"
            "07"
            "6167656e742033"
            "0b"
            "636f6f7264696e61746f72");
}

TEST(GreetingTest, bytes_that_are_cut_extended_or_of_another_kind_are_refused) {
  const std::string bytes = kFromA.encode().value();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Greeting::decode(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(Greeting::decode(bytes + '\0').ok());
  for (const size_t at : {0, 4, 5}) {  // magic, role, zero
    std::string other = bytes;
    other[at] = 3;
    EXPECT_EQ(Greeting::decode(other).status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
}

TEST(GreetingTest, the_answer_of_the_answer_is_what_was_said) {
  EXPECT_EQ(kFromA.answer().from, "coordinator");
  EXPECT_EQ(kFromA.answer().role, Role::kAccepts);
  EXPECT_EQ(kFromA.answer().answer(), kFromA);
  EXPECT_TRUE(check_greeting(kFromA, kFromA, "").ok());
}

TEST(GreetingTest, each_field_that_differs_is_named) {
  Greeting got = kFromA;
  got.to = "agent 4";
  EXPECT_THAT(difference(got), AllOf(HasSubstr("10.0.0.7:4711"), HasSubstr("to is 'agent 4', not 'coordinator'")));
  got = kFromA;
  got.from = "agent\n5";
  EXPECT_THAT(difference(got), HasSubstr("from is 'agent\\n5', not 'agent 3'"));
  got = kFromA;
  got.term = 3;
  got.generation = 4;
  EXPECT_THAT(difference(got), AllOf(HasSubstr("term is '3', not '2'"), HasSubstr("generation is '4', not '5'")));
  got = kFromA;
  got.stream = 0;
  EXPECT_THAT(difference(got), HasSubstr("stream is '0', not '1'"));
}

// A relay connects an agent to itself: it receives its own greeting, and the key is right.
TEST(GreetingTest, a_side_that_hears_itself_notices) {
  Ends ends;
  ASSERT_TRUE(ends.near->send(kFromA.encode().value(), soon()).ok());
  const Greeting heard = Greeting::decode(ends.far->receive(soon()).value()).value();
  const Greeting wanted{
      .role = Role::kConnects, .from = "coordinator", .to = "agent 3", .term = 2, .generation = 5, .stream = 1};
  EXPECT_THAT(std::string(check_greeting(wanted, heard, ends.far->peer()).message()),
              AllOf(HasSubstr("from is"), HasSubstr("to is")));
  EXPECT_THAT(difference(kFromA.answer()), HasSubstr("role is 'accepts', not 'connects'"));
}

}  // namespace
}  // namespace keepstep::net
