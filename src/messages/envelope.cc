#include "messages/envelope.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "messages/schema.h"

namespace keepstep::messages {
namespace {

constexpr uint32_t kMagic = 0x5054'534b;  // "KSTP"
constexpr uint16_t kVersion = 2;
constexpr uint16_t kBeside = 1;  // the text is in the memory of the last descriptor

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t flags = 0;
  uint32_t node = 0;
  uint32_t term = 0;
  uint32_t generation = 0;
  uint32_t text_bytes = 0;
};
static_assert(sizeof(Header) == 24);

Header header_of(std::string_view encoded) {
  Header header;
  std::memcpy(&header, encoded.data(), sizeof header);
  return header;
}

bool is_ours(const Header& header) { return header.magic == kMagic && header.version == kVersion; }

}  // namespace

std::string encode(const Envelope& envelope) {
  Header header;
  header.node = envelope.node;
  header.term = envelope.identity.term;
  header.generation = envelope.identity.generation;
  header.text_bytes = static_cast<uint32_t>(envelope.text.size());
  std::string packet(sizeof header, '\0');
  std::memcpy(packet.data(), &header, sizeof header);
  packet += envelope.text;
  return packet;
}

StatusOr<Envelope> decode(std::string_view encoded) {
  if (encoded.size() < sizeof(Header)) {
    return absl::InvalidArgumentError("a message shorter than its header");
  }
  const Header header = header_of(encoded);
  if (!is_ours(header) || header.flags != 0 || header.text_bytes != encoded.size() - sizeof header) {
    return absl::InvalidArgumentError("a message with a wrong magic, version or length");
  }
  return Envelope{header.node, {header.term, header.generation}, std::string(encoded.substr(sizeof header))};
}

Status send_encoded(const PacketSocket& socket, const std::string& encoded, std::span<const int> fds, bool waits) {
  const auto send = [&](std::string_view bytes, std::span<const int> with) {
    return waits ? socket.send(bytes, with) : socket.try_send(bytes, with);
  };
  Header header = header_of(encoded);
  const std::string_view text = std::string_view(encoded).substr(sizeof header);
  if (text.size() > kMaxTextBytes || fds.size() > kMaxMessageFds) {
    return bad_message(name_of(text), absl::StrFormat("it has %d bytes and %d descriptors; %d and %d are the most",
                                                      text.size(), fds.size(), kMaxTextBytes, kMaxMessageFds));
  }
  if (encoded.size() <= kMaxPacketBytes) {
    return send(encoded, fds);
  }
  StatusOr<SharedMemory> memory = SharedMemory::create("keepstep-message", text.size());
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the message '%s': %s", std::string(name_of(text)), memory.status().message()));
  }
  std::memcpy(memory->data(), text.data(), text.size());
  header.flags = kBeside;
  std::vector<int> with(fds.begin(), fds.end());
  with.push_back(memory->fd());
  return send({reinterpret_cast<const char*>(&header), sizeof header}, with);
}

StatusOr<Envelope> decode(Packet& packet) {
  const bool whole_header = packet.bytes.size() >= sizeof(Header);
  const Header header = whole_header ? header_of(packet.bytes) : Header{};
  if (!is_ours(header) || header.flags != kBeside) {
    return decode(std::string_view(packet.bytes));
  }
  if (packet.fds_lost) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a message of %d bytes: %s", header.text_bytes, Packet::kFdsLost));
  }
  if (header.text_bytes > kMaxTextBytes || packet.bytes.size() != sizeof header || packet.fds.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of %d bytes beside a packet of %d bytes with %d descriptors; %d bytes are the most",
                        header.text_bytes, packet.bytes.size(), packet.fds.size(), kMaxTextBytes));
  }
  Fd fd = std::move(packet.fds.back());
  packet.fds.pop_back();
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::attach(std::move(fd), header.text_bytes));
  return Envelope{header.node,
                  {header.term, header.generation},
                  std::string(reinterpret_cast<const char*>(memory.data()), header.text_bytes)};
}

}  // namespace keepstep::messages
