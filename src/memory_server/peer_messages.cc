#include "memory_server/peer_messages.h"

#include <cstring>
#include <utility>

namespace keepstep::memory_server {
namespace {

using checkpoint::memory::Json;

constexpr size_t kPieceBytes = 40;
constexpr size_t kMaxPieces = 1'000'000;

template <typename Integer>
void put(std::string& into, Integer number) {
  for (size_t i = 0; i < sizeof number; ++i) {
    into += static_cast<char>(number >> (8 * i));
  }
}

template <typename Integer>
Integer get(std::string_view from) {
  Integer number = 0;
  for (size_t i = 0; i < sizeof number; ++i) {
    number |= static_cast<Integer>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return number;
}

Status broken(const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat("a message of a memory server %s", what));
}

}  // namespace

std::string encode(const Json& head, std::string_view bytes) {
  const std::string text = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string message;
  message.reserve(4 + text.size() + bytes.size());
  put(message, static_cast<uint32_t>(text.size()));
  message += text;
  message += bytes;
  return message;
}

StatusOr<PeerMessage> decode(std::string_view message) {
  if (message.size() < 4) {
    return broken("without a head");
  }
  const auto head = get<uint32_t>(message);
  message.remove_prefix(4);
  if (head > message.size()) {
    return broken("whose head is longer than itself");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Json parsed, checkpoint::memory::parse_message(std::string(message.substr(0, head))));
  return PeerMessage{std::move(parsed), std::string(message.substr(head))};
}

std::string encode_pieces(const std::vector<Piece>& pieces) {
  std::string bytes;
  bytes.reserve(pieces.size() * kPieceBytes);
  for (const Piece& piece : pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.digest.data()), piece.digest.size());
    put(bytes, piece.bytes);
  }
  return bytes;
}

StatusOr<std::vector<Piece>> decode_pieces(std::string_view bytes) {
  if (bytes.size() % kPieceBytes != 0 || bytes.size() / kPieceBytes > kMaxPieces) {
    return broken("with pieces that are none");
  }
  std::vector<Piece> pieces(bytes.size() / kPieceBytes);
  for (Piece& piece : pieces) {
    std::memcpy(piece.digest.data(), bytes.data(), piece.digest.size());
    piece.bytes = get<uint64_t>(bytes.substr(piece.digest.size()));
    if (piece.bytes == 0 || piece.bytes > checkpoint::memory::kMaxChunkBytes) {
      return broken("with a piece of an impossible size");
    }
    bytes.remove_prefix(kPieceBytes);
  }
  return pieces;
}

StatusOr<PeerMessage> ask(net::Connection& connection, const Json& head, std::string_view bytes,
                          std::chrono::seconds limit) {
  const net::Deadline deadline = net::Deadline::after(limit);
  KEEPSTEP_RETURN_IF_ERROR(connection.send(encode(head, bytes), deadline));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string answer, connection.receive(deadline));
  KEEPSTEP_ASSIGN_OR_RETURN(PeerMessage message, decode(answer));
  KEEPSTEP_RETURN_IF_ERROR(checkpoint::memory::status_of(message.head));
  return message;
}

}  // namespace keepstep::memory_server
