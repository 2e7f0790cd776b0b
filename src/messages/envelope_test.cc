#include "messages/envelope.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <vector>

#include "base/shared_memory.h"
#include "messages/rank_messages.h"

namespace keepstep::messages {
namespace {

TEST(EnvelopeTest, what_is_encoded_is_decoded) {
  const auto decoded = decode(encode({3, {2, 7}, "any text"}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->node, 3u);
  EXPECT_EQ(decoded->identity, (brain::Identity{2, 7}));
  EXPECT_EQ(decoded->text, "any text");
}

TEST(EnvelopeTest, a_short_cut_or_foreign_packet_is_refused) {
  const std::string good = encode({0, {1, 1}, "parked {}"});
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

Envelope long_message(size_t bytes) { return {3, {2, 7}, write(Inject{.fault = {.text = std::string(bytes, 'x')}})}; }

TEST(EnvelopeTest, a_message_of_any_length_up_to_the_most_arrives_whole_with_its_descriptors) {
  auto pair = *PacketSocket::pair();
  const SharedMemory own = *SharedMemory::create("test", 4096);
  const std::vector<int> fds(kMaxMessageFds, own.fd());
  for (const size_t bytes :
       {size_t{10}, kMaxPacketBytes - 400, kMaxPacketBytes, size_t{1} << 20, kMaxTextBytes - 400}) {
    SCOPED_TRACE(bytes);
    const Envelope message = long_message(bytes);
    ASSERT_TRUE(send_encoded(pair.first, encode(message), fds, false).ok());
    Packet packet = *pair.second.receive();
    const auto came = decode(packet);
    ASSERT_TRUE(came.ok()) << came.status();
    EXPECT_EQ(came->identity, message.identity);
    EXPECT_EQ(came->text, message.text);
    EXPECT_EQ(packet.fds.size(), kMaxMessageFds);
  }
}

TEST(EnvelopeTest, a_longer_one_is_refused_by_name_and_nothing_is_sent) {
  auto pair = *PacketSocket::pair();
  const Status status = send_encoded(pair.first, encode(long_message(kMaxTextBytes)), {}, true);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_NE(status.message().find("'inject'"), std::string::npos) << status;
  const std::vector<int> fds(kMaxMessageFds + 1, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(send_encoded(pair.first, encode(long_message(1)), fds, true)));
  ASSERT_TRUE(pair.first.send("next").ok());
  EXPECT_EQ(pair.second.receive()->bytes, "next");
}

TEST(EnvelopeTest, a_long_message_whose_memory_is_not_what_its_header_says_is_refused) {
  const std::string header = encode(long_message(1)).substr(0, 24);
  const auto with = [&](uint32_t text_bytes, std::vector<Fd> fds, const std::string& rest = "") {
    Packet packet{header + rest, std::move(fds)};
    packet.bytes[6] = 1;
    std::memcpy(packet.bytes.data() + 20, &text_bytes, sizeof text_bytes);
    return decode(packet).status();
  };
  const auto memory = [](size_t bytes) {
    std::vector<Fd> fds;
    fds.emplace_back(fcntl(SharedMemory::create("test", bytes)->fd(), F_DUPFD_CLOEXEC, 0));
    return fds;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(with(100, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(with(5000, memory(4096))));
  EXPECT_TRUE(absl::IsInvalidArgument(with(kMaxTextBytes + 1, memory(4096))));
  EXPECT_TRUE(absl::IsInvalidArgument(with(4096, memory(4096), "x")));
  EXPECT_TRUE(with(4096, memory(4096)).ok());
}

TEST(EnvelopeTest, without_room_for_its_descriptors_a_message_still_comes_and_says_what_is_missing) {
  auto pair = *PacketSocket::pair();
  const SharedMemory own = *SharedMemory::create("test", 4096);
  const std::vector<int> fds = {own.fd()};
  ASSERT_TRUE(send_encoded(pair.first, encode(long_message(10)), fds, false).ok());
  ASSERT_TRUE(send_encoded(pair.first, encode(long_message(kMaxPacketBytes)), {}, false).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  StatusOr<Packet> small = pair.second.receive();
  StatusOr<Packet> large = pair.second.receive();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_TRUE(small->fds_lost);
  EXPECT_TRUE(decode(*small).ok());
  const Status status = decode(*large).status();
  EXPECT_NE(status.message().find("ulimit -n"), std::string::npos) << status;
}

}  // namespace
}  // namespace keepstep::messages
