#include "agent/workers/outbox.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "messages/envelope.h"
#include "messages/rank_messages.h"

namespace keepstep::agent {
namespace {

std::string numbered(uint32_t number, size_t bytes = 10'000) {
  return messages::encode({0, {1, 1}, messages::write(messages::VaultAnswer{number, std::string(bytes, 'x')})});
}

TEST(Outbox, what_a_worker_does_not_read_now_it_reads_later_in_order_and_with_its_descriptors) {
  auto pair = *PacketSocket::pair();
  Outbox outbox;
  SharedMemory memory = *SharedMemory::create("test", 4096);
  const std::vector<int> fds = {memory.fd()};
  uint32_t sent = 0;
  while (outbox.waiting() < 20) {
    ASSERT_TRUE(outbox.send(pair.first, numbered(sent++), fds).ok());
  }
  // A message too large for a packet waits its turn like the others.
  ASSERT_TRUE(outbox.send(pair.first, numbered(sent++, kMaxPacketBytes), fds).ok());
  memory = SharedMemory();  // the outbox has copies of the descriptor
  for (uint32_t next = 0; next < sent; ++next) {
    Packet packet = *pair.second.receive();
    const auto envelope = messages::decode(packet);
    ASSERT_TRUE(envelope.ok()) << envelope.status();
    const auto message = messages::read<messages::ToRank>(envelope->text);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(std::get<messages::VaultAnswer>(*message).id, next);
    EXPECT_EQ(packet.fds.size(), 1U);
    outbox.flush(pair.first);
  }
  EXPECT_EQ(outbox.waiting(), 0U);
}

TEST(Outbox, a_worker_that_never_reads_takes_bounded_memory_and_is_named) {
  auto pair = *PacketSocket::pair();
  Outbox outbox;
  Status status;
  for (uint32_t sent = 0; status.ok(); ++sent) {
    status = outbox.send(pair.first, numbered(sent, 100), {});
    ASSERT_LE(sent, 1'000'000U);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(outbox.waiting(), kMaxKeptMessages);
}

TEST(Outbox, what_is_for_a_worker_that_is_gone_is_not_kept) {
  auto pair = *PacketSocket::pair();
  Outbox outbox;
  while (outbox.waiting() < 3) {
    ASSERT_TRUE(outbox.send(pair.first, numbered(0), {}).ok());
  }
  pair.second = PacketSocket();
  outbox.flush(pair.first);
  EXPECT_EQ(outbox.waiting(), 0U);
  EXPECT_TRUE(absl::IsUnavailable(outbox.send(pair.first, numbered(1), {})));
}

}  // namespace
}  // namespace keepstep::agent
