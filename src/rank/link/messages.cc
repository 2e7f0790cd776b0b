#include "rank/link/messages.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/shared_memory.h"

namespace keepstep::rank {
namespace {

constexpr uint32_t kMagic = 0x5054'534b;  // "KSTP"
constexpr uint16_t kVersion = 1;
constexpr uint16_t kBeside = 0x8000;  // a bit of the type: the body is in the memory of the last descriptor

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

Header header_of(std::string_view encoded) {
  Header header;
  std::memcpy(&header, encoded.data(), sizeof header);
  return header;
}

bool is_ours(const Header& header) { return header.magic == kMagic && header.version == kVersion; }

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

StatusOr<Message> decode(std::string_view encoded) {
  if (encoded.size() < sizeof(Header)) {
    return absl::InvalidArgumentError("a message shorter than its header");
  }
  const Header header = header_of(encoded);
  if (!is_ours(header) || header.body_bytes != encoded.size() - sizeof header) {
    return absl::InvalidArgumentError("a message with a wrong magic, version or length");
  }
  Message message;
  message.type = static_cast<MessageType>(header.type);
  message.node = header.node;
  message.identity = {header.term, header.generation};
  message.body = nlohmann::json::parse(encoded.substr(sizeof header), nullptr, false);
  if (!message.body.is_object()) {
    return absl::InvalidArgumentError("a message whose body is no JSON object");
  }
  return message;
}

Status send_encoded(const PacketSocket& socket, const std::string& encoded, std::span<const int> fds, bool waits) {
  const auto send = [&](std::string_view bytes, std::span<const int> with) {
    return waits ? socket.send(bytes, with) : socket.try_send(bytes, with);
  };
  Header header = header_of(encoded);
  const size_t body_bytes = encoded.size() - sizeof header;
  if (body_bytes > kMaxBodyBytes || fds.size() > kMaxMessageFds) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of type %d with %d bytes and %d descriptors; %d and %d are the most", header.type,
                        body_bytes, fds.size(), kMaxBodyBytes, kMaxMessageFds));
  }
  if (encoded.size() <= kMaxPacketBytes) {
    return send(encoded, fds);
  }
  StatusOr<SharedMemory> memory = SharedMemory::create("keepstep-message", body_bytes);
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a message of type %d: %s", header.type, memory.status().message()));
  }
  std::memcpy(memory->data(), encoded.data() + sizeof header, body_bytes);
  header.type |= kBeside;
  std::vector<int> with(fds.begin(), fds.end());
  with.push_back(memory->fd());
  return send({reinterpret_cast<const char*>(&header), sizeof header}, with);
}

StatusOr<Message> decode(Packet& packet) {
  const bool whole_header = packet.bytes.size() >= sizeof(Header);
  Header header = whole_header ? header_of(packet.bytes) : Header{};
  if (!is_ours(header) || (header.type & kBeside) == 0) {
    return decode(std::string_view(packet.bytes));
  }
  if (packet.fds_lost) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a message of %d bytes: %s", header.body_bytes, Packet::kFdsLost));
  }
  if (header.body_bytes > kMaxBodyBytes || packet.bytes.size() != sizeof header || packet.fds.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of %d bytes beside a packet of %d bytes with %d descriptors; %d bytes are the most",
                        header.body_bytes, packet.bytes.size(), packet.fds.size(), kMaxBodyBytes));
  }
  Fd fd = std::move(packet.fds.back());
  packet.fds.pop_back();
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::attach(std::move(fd), header.body_bytes));
  header.type &= static_cast<uint16_t>(~kBeside);
  std::string encoded(sizeof header + header.body_bytes, '\0');
  std::memcpy(encoded.data(), &header, sizeof header);
  std::memcpy(encoded.data() + sizeof header, memory.data(), header.body_bytes);
  return decode(std::string_view(encoded));
}

}  // namespace keepstep::rank
