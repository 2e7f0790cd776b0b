// What a client and this machine's memory server say to each other (docs/formats/memory_store.md).
//
// Packets of JSON over a Unix socket (base/socket/packet_socket.h), one answer to each request, in order. Contents do
// not cross the socket: a writer puts them into an arena that both map, a reader reads them from the server's memory,
// of which it has a descriptor that cannot write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace keepstep::checkpoint::memory {

using Json = nlohmann::json;

inline constexpr int kProtocolVersion = 1;
inline constexpr size_t kMaxChunkBytes = size_t{4} << 20;  // the most that is stored as one
// Of a writer's arena. While the server takes one slot, the writer fills another.
inline constexpr size_t kSlots = 4;
inline constexpr size_t kArenaBytes = kSlots * kMaxChunkBytes;
inline constexpr size_t kMaxPieces = 256;  // in an answer to "read"
inline constexpr size_t kMaxNames = 80;    // in an answer to "list" or "folders": the longest keys still fit a packet
inline constexpr size_t kMaxNameBytes = 100;  // of a destination

// The name of the server's socket in the user's runtime folder (base/runtime_folder.h).
std::string server_name();

// memory://NAME, with a letter first: what begins with a digit, or has a ':', means a running job.
bool is_destination_name(std::string_view name);

// An answer that reports an error, and that error again.
Json error_answer(const Status& status);
Status status_of(const Json& answer);  // OK if it reports none

// A field of a message. INVALID_ARGUMENT: it is missing, or of another kind.
StatusOr<std::string> text_field(const Json& message, const char* name);
StatusOr<uint64_t> number_field(const Json& message, const char* name);

// Parses a packet. INVALID_ARGUMENT: it is not a JSON object.
StatusOr<Json> parse_message(const std::string& bytes);

}  // namespace keepstep::checkpoint::memory
