// A Relay between a live Source and requests as received from the wire; across nodes: remote_hydration_test.cc.
#include "state/relay.h"

#include <gtest/gtest.h>

#include <string>

#include "state/hydration_testing.h"

namespace keepstep::state {
namespace {

using testing::kIdentity;
using testing::kVersion;

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() { EXPECT_TRUE(source_.publish(kIdentity, kVersion, "{}", tensors_.regions()).ok()); }

  static RemoteRequest request(uint64_t number, Kind kind = Kind::kData, brain::Version version = kVersion) {
    return {.number = number,
            .identity = pack(kIdentity),
            .version = version,
            .bytes = 4096,
            .kind = static_cast<uint32_t>(kind)};
  }
  static std::string text(const Relay::Answered& answered) {
    return {reinterpret_cast<const char*>(answered.bytes.data()), answered.bytes.size()};
  }

  testing::SharedRegion region_;
  testing::Tensors tensors_{{1 << 20}, 1};
  HostCopy copy_;
  Source source_{region_.data(), copy_, nullptr};
  std::atomic<uint32_t> interrupted_ = 0;
  Relay relay_{region_.data(), 1, kIdentity, &interrupted_};
};

TEST_F(RelayTest, answers_what_was_begun_first_first) {
  for (uint64_t number = 1; number <= kSlots; ++number) {
    relay_.begin(request(number, number % 2 == 0 ? Kind::kData : static_cast<Kind>(99)));
  }
  for (uint64_t number = 1; number <= kSlots; ++number) {
    const StatusOr<Relay::Answered> answered = relay_.answer();
    ASSERT_TRUE(answered.ok());
    EXPECT_EQ(answered->head.number, number);
    EXPECT_EQ(answered->head.code, number % 2 == 0 ? 0 : kReplyRefused);
  }
  EXPECT_FALSE(relay_.has_begun());
}

TEST_F(RelayTest, an_interruption_between_two_requests_is_an_answer_to_both) {
  for (uint64_t number = 1; number <= kSlots; ++number) {
    relay_.begin(request(number));
  }
  interrupted_ = 1;
  EXPECT_TRUE(absl::IsAborted(relay_.answer().status()));
  relay_.begin(request(kSlots + 1));
  while (relay_.has_begun()) {
    EXPECT_TRUE(absl::IsAborted(relay_.answer().status()));
  }
}

TEST_F(RelayTest, a_refusal_keeps_its_text_until_it_went_out) {
  // The first two are refused when answered, the others when begun.
  relay_.begin(request(1, Kind::kData, kVersion + 1));
  relay_.begin(request(2, Kind::kData, kVersion + 1));
  relay_.begin(request(3, static_cast<Kind>(99)));
  relay_.begin(request(4, Kind::kData));
  ASSERT_TRUE(relay_.answer().ok());
  ASSERT_TRUE(relay_.answer().ok());
  relay_.begin(request(5, static_cast<Kind>(98)));
  const StatusOr<Relay::Answered> third = relay_.answer();
  ASSERT_TRUE(third.ok());
  const std::string before = text(*third);
  EXPECT_NE(before, "");
  for (uint64_t number = 6; number <= 7; ++number) {  // with those outstanding, as many as there are slots
    RemoteRequest other = request(number);
    other.layout = 1;  // a longer text
    relay_.begin(other);
  }
  EXPECT_EQ(text(*third), before);
}

}  // namespace
}  // namespace keepstep::state
