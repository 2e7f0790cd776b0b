// Messages between memory servers (docs/formats/memory_store.md): a JSON object and bytes after it, in one message of
// src/net. One answer to each request.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/memory/protocol.h"
#include "memory_server/shelves.h"
#include "net/connection.h"

namespace keepstep::memory_server {

inline constexpr int kPeerVersion = 1;
inline constexpr size_t kMaxPeerMessage = size_t{48} << 20;  // the pieces of the largest object
inline constexpr size_t kMaxOffered = 4096;                  // digests in one "have"
inline constexpr size_t kMaxListed = 1000;                   // objects in one answer

struct PeerMessage {
  checkpoint::memory::Json head;
  std::string bytes;
};

std::string encode(const checkpoint::memory::Json& head, std::string_view bytes = {});
// INVALID_ARGUMENT: no server of this version sends that.
StatusOr<PeerMessage> decode(std::string_view message);

// 40 bytes each: the digest, and how many bytes (little endian).
std::string encode_pieces(const std::vector<Piece>& pieces);
StatusOr<std::vector<Piece>> decode_pieces(std::string_view bytes);

// Asks and waits for the answer, whose error becomes the status. After UNAVAILABLE, DATA_LOSS or DEADLINE_EXCEEDED the
// connection is of no use any more.
StatusOr<PeerMessage> ask(net::Connection& connection, const checkpoint::memory::Json& head, std::string_view bytes,
                          std::chrono::seconds limit);

}  // namespace keepstep::memory_server
