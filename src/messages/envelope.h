// How messages travel between a rank and its agent: a fixed header and a message's text (schema.h) in one packet
// (base/socket/packet_socket.h). A text too long for a packet travels in sealed memory, whose descriptor is the
// packet's last one.
//
// Every message carries node, term and generation. The socket is one half of a pair that the agent made, so there is no
// peer to authenticate; sizes are checked all the same. Byte layout: docs/formats/wire_worker.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::messages {

struct Envelope {
  uint32_t node = 0;  // the agent's; 0 from a worker that has not been welcomed yet
  brain::Identity identity;
  std::string text;  // from write()
};

inline constexpr size_t kMaxMessageFds = 64;  // the message's own
inline constexpr size_t kMaxTextBytes = size_t{32} << 20;

// Header and text in one piece, of any length.
std::string encode(const Envelope& envelope);
// INVALID_ARGUMENT for a wrong magic or version, or a length that does not match.
StatusOr<Envelope> decode(std::string_view encoded);

// Sends the result of encode(), waiting for room in the socket if `waits`. INVALID_ARGUMENT: too long or too many
// descriptors; names both limits and the message. UNAVAILABLE: the other side is gone. RESOURCE_EXHAUSTED: no room now,
// or no memory or descriptor for a long message.
Status send_encoded(const PacketSocket& socket, const std::string& encoded, std::span<const int> fds, bool waits);
// Decodes a received packet; the message's own descriptors stay in `packet`. Errors as for the other decode();
// INVALID_ARGUMENT also if the text is longer than kMaxTextBytes, or if its memory does not match the header; nothing
// is allocated then.
StatusOr<Envelope> decode(Packet& packet);

}  // namespace keepstep::messages
