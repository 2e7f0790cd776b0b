#include "worker/messages.h"

#include <cstring>

namespace keepstep::worker {
namespace {

constexpr uint32_t kMagic = 0x5054'534b;  // "KSTP"
constexpr uint16_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t type = 0;
  uint32_t node = 0;
  uint32_t term = 0;
  uint32_t generation = 0;
  uint32_t body_bytes = 0;
};
static_assert(sizeof(Header) == 24);

}  // namespace

std::string encode(const Message& message) {
  // Text from user code may hold any bytes; what is not UTF-8 is replaced rather than refused.
  const std::string body = message.body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  Header header;
  header.type = static_cast<uint16_t>(message.type);
  header.node = message.node;
  header.term = message.identity.term;
  header.generation = message.identity.generation;
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::string packet(sizeof header, '\0');
  std::memcpy(packet.data(), &header, sizeof header);
  packet += body;
  return packet;
}

StatusOr<Message> decode(std::string_view packet) {
  Header header;
  if (packet.size() < sizeof header) {
    return absl::InvalidArgumentError("a message shorter than its header");
  }
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.body_bytes != packet.size() - sizeof header) {
    return absl::InvalidArgumentError("a message with a wrong magic, version or length");
  }
  Message message;
  message.type = static_cast<MessageType>(header.type);
  message.node = header.node;
  message.identity = {header.term, header.generation};
  message.body = nlohmann::json::parse(packet.substr(sizeof header), nullptr, false);
  if (!message.body.is_object()) {
    return absl::InvalidArgumentError("a message whose body is no JSON object");
  }
  return message;
}

}  // namespace keepstep::worker
