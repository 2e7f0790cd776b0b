// How messages travel between a rank and its agent: a fixed header and a message's text (schema.h) in one packet
// (base/socket/packet_socket.h). A text that is too long for a packet travels in sealed memory, whose descriptor is the
// packet's last.
//
// Every message carries node, term and generation. The socket is one half of a pair that the agent made, so there is
// nobody to authenticate; sizes are checked all the same. The byte layout is written down in
// docs/formats/wire_worker.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::messages {

struct Envelope {
  uint32_t node = 0;  // the agent's; 0 from a worker that has no welcome yet
  brain::Identity identity;
  std::string text;  // of write()
};

inline constexpr size_t kMaxMessageFds = 64;  // of its own
inline constexpr size_t kMaxTextBytes = size_t{32} << 20;

// Header and text in one piece, however long.
std::string encode(const Envelope& envelope);
// INVALID_ARGUMENT for a wrong magic or version, or a length that does not match.
StatusOr<Envelope> decode(std::string_view encoded);

// Sends what encode() gave, waiting for room in the socket if `waits`. INVALID_ARGUMENT: longer, or with more
// descriptors, than a message may be; it names both and the message. UNAVAILABLE: the other side is gone.
// RESOURCE_EXHAUSTED: no room now, or no memory or descriptor to carry a long one in.
Status send_encoded(const PacketSocket& socket, const std::string& encoded, std::span<const int> fds, bool waits);
// What came; the message's own descriptors stay in `packet`. Errors of decode(); INVALID_ARGUMENT also for a text that
// is longer than kMaxTextBytes or whose memory is not what the header says; nothing is allocated then.
StatusOr<Envelope> decode(Packet& packet);

}  // namespace keepstep::messages
