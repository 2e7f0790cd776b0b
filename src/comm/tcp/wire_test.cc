// The bytes of the data plane: what is encoded is parsed back, what nobody would send is refused.

#include "comm/tcp/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/tcp/pair_mirror.h"

namespace keepstep::comm::tcp {
namespace {

using Header = std::array<std::byte, kFrameHeaderBytes>;

Header bytes_of(const Frame& frame) {
  Header bytes;
  encode(frame, std::span<std::byte, kFrameHeaderBytes>(bytes));
  return bytes;
}

using HelloBytes = std::array<std::byte, kHelloBytes>;

template <class Message>
HelloBytes hello_of(const Message& message) {
  HelloBytes bytes;
  encode(message, std::span<std::byte, kHelloBytes>(bytes));
  return bytes;
}

TEST(Wire, a_hello_and_its_answer_come_back_as_they_were) {
  Hello hello{{3, 14}, 1, 5, 2, 0x1122334455667788, Protection::kMac};
  HelloBytes bytes = hello_of(hello);
  EXPECT_EQ(parse_hello(bytes), hello);
  EXPECT_FALSE(parse_answer(bytes).has_value()) << "sent back to who said it";
  const auto answer = parse_answer(hello_of(Answer{Verdict::kOtherProtection, hello}));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->verdict, Verdict::kOtherProtection);
  EXPECT_EQ(answer->hello, hello);
  bytes[0] ^= std::byte{1};
  EXPECT_FALSE(parse_hello(bytes).has_value()) << "another magic";
  bytes[0] ^= std::byte{1};
  bytes[7] = std::byte{1};
  EXPECT_FALSE(parse_hello(bytes).has_value()) << "a verdict where none belongs";
  bytes[7] = std::byte{0};
  bytes[6] = std::byte{2};
  EXPECT_FALSE(parse_hello(bytes).has_value()) << "an unknown protection";
  hello.stream = 0;
  EXPECT_FALSE(parse_hello(hello_of(hello)).has_value()) << "messages of one group";
}

TEST(Wire, the_bytes_of_a_hello_are_those_of_the_page) {
  const HelloBytes bytes = hello_of(Hello{{0x01020304, 0x05060708}, 9, 10, 11, 0x0c0d0e0f, Protection::kMac});
  const unsigned char expected[] = {'K', 'S', 'D', 'H', 4,  0, 1, 0, 4, 3, 2, 1, 8,    7,    6,    5,    9, 0, 0, 0,
                                    10,  0,   0,   0,   11, 0, 0, 0, 0, 0, 0, 0, 0x0f, 0x0e, 0x0d, 0x0c, 0, 0, 0, 0};
  static_assert(sizeof expected == kHelloBytes);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(Wire, frames_come_back_as_they_were) {
  const Frame part{FrameKind::kPart, 7, 100, 1, 2, 50, 150};
  EXPECT_EQ(parse_frame(bytes_of(part), 1), part);
  const Frame offer{FrameKind::kOffer, 99, 0, 5, 3, 0, uint64_t{1} << 40};
  EXPECT_EQ(parse_frame(bytes_of(offer), 0), offer);
  const Frame empty{FrameKind::kPart, 0, 0, 0, 1, 0, 0};
  EXPECT_EQ(parse_frame(bytes_of(empty), 2), empty);
}

TEST(Wire, frames_that_no_peer_sends_are_refused) {
  const auto refused = [](const Frame& frame, uint32_t stream) {
    return !parse_frame(bytes_of(frame), stream).has_value();
  };
  EXPECT_TRUE(refused({FrameKind::kPart, 0, kMaxFrameBytes + 1, 0, 0, 0, uint64_t{1} << 30}, 1)) << "too long";
  EXPECT_TRUE(refused({FrameKind::kPart, 0, 10, 0, 0, 0, kMaxPartBytes + 1}, 1)) << "a part that is too long";
  EXPECT_TRUE(refused({FrameKind::kPart, 0, 10, 0, 0, 95, 100}, 1)) << "beyond its part";
  EXPECT_TRUE(refused({FrameKind::kPart, 0, 10, 0, 0, ~uint64_t{0} - 4, 100}, 1)) << "an offset that wraps around";
  EXPECT_TRUE(refused({FrameKind::kPart, 0, 0, 0, 0, 0, 100}, 1)) << "nothing, for ever";
  EXPECT_TRUE(refused({FrameKind::kPart, 0, 10, 0, 0, 0, 100}, 0)) << "a part where messages go";
  EXPECT_TRUE(refused({FrameKind::kOffer, 0, 0, 0, 0, 0, 100}, 1)) << "an offer where parts go";
  EXPECT_TRUE(refused({FrameKind::kOffer, 0, 8, 0, 0, 0, 100}, 0)) << "an offer with a payload";
  EXPECT_TRUE(refused({FrameKind::kBytes, 0, 0, 0, 0, 0, 0}, 0)) << "no bytes";
  EXPECT_TRUE(refused({FrameKind::kPairEnded, 0, 0, 0, 2, 0, 0}, 0)) << "a third direction";
  EXPECT_TRUE(refused({FrameKind::kPairEnded, ~uint32_t{0}, 0, 0, 0, 0, 0}, 0)) << "a rank that cannot be";
  EXPECT_TRUE(refused({FrameKind::kGiveUp, ~uint32_t{0}, 0, 7, 0, 0, 0}, 1)) << "a rank that cannot be";
  EXPECT_TRUE(refused({FrameKind::kGiveUp, 0, 0, 7, uint64_t{1} << 32, 0, 0}, 1)) << "a link to a rank that cannot be";
  EXPECT_TRUE(refused({static_cast<FrameKind>(8), 0, 0, 0, 0, 0, 0}, 0)) << "an unknown kind";
  EXPECT_TRUE(refused({static_cast<FrameKind>(0), 0, 0, 0, 0, 0, 0}, 1)) << "no kind";
}

TEST(Wire, random_bytes_are_never_taken_for_a_frame_with_a_wrong_size) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200'000; ++i) {
    Header bytes = bytes_of({FrameKind::kPart, 0, 1, 0, 0, 0, 1});
    for (int changes = 0; changes < 3; ++changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    for (const uint32_t stream : {0, 1}) {
      if (const auto frame = parse_frame(bytes, stream); frame.has_value()) {
        ASSERT_LE(frame->bytes, kMaxFrameBytes);
        if (frame->kind == FrameKind::kPart) {
          ASSERT_LE(frame->offset + frame->bytes, frame->total);
        }
      }
    }
  }
}

// ---- pairs: what one end tells, the other sees; what no end tells is refused

// Carries everything from one end to the other.
void deliver(PairMirror& from, PairMirror& to) {
  while (const auto telling = from.next()) {
    if (telling->frame.kind == FrameKind::kBytes) {
      const auto target = to.target(telling->frame);
      ASSERT_TRUE(target.has_value());
      ASSERT_EQ(target->ends_message, telling->ends_message);
      std::memcpy(target->to, telling->payload, telling->frame.bytes);
    }
    ASSERT_TRUE(to.apply(telling->frame));
  }
}

TEST(PairMirror, both_ends_see_what_the_other_wrote) {
  PairMirror here(1, 4096);
  PairMirror there(0, 4096);
  here.outgoing().offers[0] = {.context = 5, .bytes = 3, .tag = 7, .unused = 0};
  here.outgoing().sender.offers_written = 1;
  deliver(here, there);
  EXPECT_EQ(there.incoming().sender.offers_written, 1U);
  EXPECT_EQ(there.incoming().offers[0].tag, 7U);
  there.incoming().receiver.offers_read = 1;
  there.incoming().grants[0] = {.offer = 0, .capacity = 10};
  there.incoming().receiver.grants_written = 1;
  deliver(there, here);
  EXPECT_EQ(here.outgoing().receiver.grants_written, 1U);
  EXPECT_EQ(here.outgoing().grants[0].capacity, 10U);
  EXPECT_EQ(here.outgoing().receiver.offers_read, 1U);
  here.outgoing().sender.grants_read = 1;
  deliver(here, there);
  EXPECT_EQ(there.incoming().sender.grants_read, 1U);
  EXPECT_FALSE(here.next().has_value());
}

std::vector<std::byte> numbers(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  return bytes;
}

TEST(PairMirror, messages_go_in_frames_from_memory_into_memory) {
  PairMirror here(1, 1000);
  PairMirror there(0, 64);  // how one end cuts messages is nothing to the other
  std::vector<std::byte> sent = numbers(2500);
  std::vector<std::byte> got(sent.size());
  size_t begin = 0;
  for (const size_t bytes : {1, 499, 2000}) {  // the last one of two frames
    here.outgoing_bytes().add(std::span(sent).subspan(begin, bytes));
    there.incoming_bytes().add(std::span(got).subspan(begin, bytes));
    begin += bytes;
  }
  deliver(here, there);
  EXPECT_EQ(there.incoming_bytes().moved(), sent.size());
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(here.next().has_value());
}

TEST(PairMirror, what_comes_of_cancelled_messages_is_dropped) {
  PairMirror here(1, 10);
  PairMirror there(0, 10);
  std::vector<std::byte> sent = numbers(30);
  std::vector<std::byte> got(sent.size());
  here.outgoing_bytes().add(sent);
  there.incoming_bytes().add(got);
  const auto first = here.next();
  ASSERT_TRUE(first.has_value());
  ASSERT_NE(there.target(first->frame)->to, nullptr);
  there.incoming_bytes().cancel();
  ASSERT_TRUE(there.apply(first->frame));
  const auto second = here.next();
  ASSERT_TRUE(second.has_value());
  const auto target = there.target(second->frame);
  ASSERT_TRUE(target.has_value());
  EXPECT_EQ(target->to, nullptr);
  here.outgoing_bytes().cancel();
  EXPECT_FALSE(here.next().has_value());
  here.outgoing_bytes().add(sent);
  EXPECT_FALSE(here.next().has_value()) << "for good";
}

TEST(PairMirror, what_no_honest_end_sends_is_refused) {
  PairMirror mirror(1, 1000);
  EXPECT_FALSE(mirror.target({.kind = FrameKind::kBytes, .bytes = 1}).has_value()) << "nothing was granted";
  std::vector<std::byte> memory(1000);
  mirror.incoming_bytes().add(memory);
  EXPECT_FALSE(mirror.target({.kind = FrameKind::kBytes, .bytes = 1001}).has_value()) << "more than was granted";
  EXPECT_FALSE(mirror.target({.kind = FrameKind::kBytes, .bytes = 1, .offset = 5}).has_value()) << "a gap";
  EXPECT_FALSE(mirror.apply({.kind = FrameKind::kOffer, .operation = 1})) << "an offer left out";
  EXPECT_FALSE(mirror.apply({.kind = FrameKind::kGrant, .operation = 3})) << "a grant left out";
  EXPECT_FALSE(mirror.apply({.kind = FrameKind::kRead, .operation = 1})) << "it read what was never offered";
  EXPECT_FALSE(mirror.apply({.kind = FrameKind::kPart})) << "a part";
  for (uint64_t i = 0; i < kPendingOffers; ++i) {
    EXPECT_TRUE(mirror.apply({.kind = FrameKind::kOffer, .operation = i}));
  }
  EXPECT_FALSE(mirror.apply({.kind = FrameKind::kOffer, .operation = kPendingOffers})) << "more than there is room for";
}

TEST(PairMirror, an_end_that_gave_up_is_told_once) {
  PairMirror here(1, 1000);
  PairMirror there(0, 1000);
  here.outgoing().given_up_by = 1;
  deliver(here, there);
  EXPECT_EQ(there.incoming().given_up_by, 1U);
  EXPECT_EQ(there.outgoing().given_up_by, 0U);
  EXPECT_FALSE(there.next().has_value());
}

}  // namespace
}  // namespace keepstep::comm::tcp
