#include "messages/store_value.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/socket/packet_socket.h"
#include "messages/envelope.h"

namespace keepstep::messages {
namespace {

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>(i * 31 + i / 256);
  }
  return text;
}

// Through a real packet socket, as between worker and agent.
template <typename Messages, typename Message>
StatusOr<std::string> carried(const WithMemory<Message>& sent) {
  auto [one, other] = *PacketSocket::pair();
  KEEPSTEP_RETURN_IF_ERROR(one.send(encode({0, {1, 1}, write(sent.message)}), sent.fds()));
  KEEPSTEP_ASSIGN_OR_RETURN(Packet packet, other.receive());
  KEEPSTEP_ASSIGN_OR_RETURN(const Envelope came, decode(packet.bytes));
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, read<Messages>(came.text));
  return value_of(std::get<Message>(message).value, std::move(packet.fds));
}

TEST(StoreValueTest, values_of_all_sizes_up_to_the_largest_arrive_as_they_were) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{48} << 10, (size_t{48} << 10) + 1, size_t{80} << 10,
                             size_t{3} << 20, kMaxStoreValueBytes}) {
    const std::string value = pattern(bytes);
    const auto asked = store_question(1, "set", std::string(kMaxStoreKeyBytes, 'k'), value);
    ASSERT_TRUE(asked.ok()) << asked.status();
    const auto came = carried<FromRank>(*asked);
    ASSERT_TRUE(came.ok()) << came.status();
    EXPECT_TRUE(*came == value) << bytes;
    const auto answered = carried<ToRank>(store_answer(1, true, value));
    ASSERT_TRUE(answered.ok()) << answered.status();
    EXPECT_TRUE(*answered == value) << bytes;
  }
}

TEST(StoreValueTest, what_is_too_large_is_an_error_that_names_key_and_size) {
  const auto value = store_question(1, "set", "7/weights", std::string(kMaxStoreValueBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(value.status()));
  EXPECT_EQ(value.status().message(),
            "store: the value of '7/weights' has 8388609 bytes, 8388608 is the most; send larger things through a "
            "process group");
  const auto key = store_question(1, "get", std::string(kMaxStoreKeyBytes + 1, 'k'), "");
  EXPECT_TRUE(absl::IsInvalidArgument(key.status()));
  EXPECT_NE(key.status().message().find("a key of 16385 bytes"), std::string::npos) << key.status();
}

TEST(StoreValueTest, a_message_that_promises_more_than_came_is_refused) {
  const auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  const auto fds = [&] {
    std::vector<Fd> one;
    one.emplace_back(dup(memory->fd()));
    return one;
  };
  const auto beside = [](uint64_t bytes) { return StoreValue{{}, bytes}; };
  EXPECT_TRUE(value_of(beside(4096), fds()).ok());
  EXPECT_FALSE(value_of(beside(4097), fds()).ok());
  EXPECT_FALSE(value_of(beside(kMaxStoreValueBytes + 1), fds()).ok());
  EXPECT_FALSE(value_of(beside(4096), {}).ok());
}

}  // namespace
}  // namespace keepstep::messages
