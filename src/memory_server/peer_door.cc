#include "memory_server/peer_door.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "checkpoint/keys.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::memory::is_destination_name;
using checkpoint::memory::Json;
using checkpoint::memory::kMaxChunkBytes;
using checkpoint::memory::number_field;
using checkpoint::memory::text_field;

constexpr size_t kMaxOriginBytes = 64;
constexpr size_t kMaxHeld = 1'000'000;  // pieces of one object

StatusOr<Shelves::Key> key_of(const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::string destination, text_field(request.head, "destination"));
  KEEPSTEP_ASSIGN_OR_RETURN(std::string key, text_field(request.head, "key"));
  KEEPSTEP_RETURN_IF_ERROR(checkpoint::check_key(key));
  if (!is_destination_name(destination)) {
    return absl::InvalidArgumentError("a destination without a valid name");
  }
  return Shelves::Key{std::move(destination), std::move(key)};
}

StatusOr<int64_t> time_field(const PeerMessage& request) {
  const auto field = request.head.find("modified");
  if (field == request.head.end() || !field->is_number_integer()) {
    return absl::InvalidArgumentError("an object without its time");
  }
  return field->get<int64_t>();
}

}  // namespace

PeerDoor::~PeerDoor() {
  listener_.reset();  // nobody is let in any more
  for (Member& member : members_) {
    member.connection->abort();
  }
  for (Member& member : members_) {
    member.thread.join();
  }
}

Status PeerDoor::open(Fd socket, std::shared_ptr<const net::TlsContext> context) {
  KEEPSTEP_ASSIGN_OR_RETURN(
      listener_,
      net::Listener::start(
          std::move(socket), std::move(context), {}, [this](net::TlsStream stream) { admit(std::move(stream)); },
          [](const Status& why) { spdlog::info("refused a stranger: {}", std::string(why.message())); }));
  return absl::OkStatus();
}

size_t PeerDoor::members() {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(members_.begin(), members_.end(), [](const Member& each) { return !each.over; }));
}

void PeerDoor::admit(net::TlsStream stream) {
  const std::lock_guard lock(mutex_);
  for (auto at = members_.begin(); at != members_.end();) {
    if (at->over) {
      at->thread.join();
      at = members_.erase(at);
    } else {
      ++at;
    }
  }
  if (members_.size() >= kMaxMembers) {
    spdlog::warn("{} connections of other servers, which is the most: {} is refused", kMaxMembers, stream.peer());
    return;
  }
  Member& member = members_.emplace_back();
  member.connection = std::make_unique<net::Connection>(std::move(stream),
                                                        net::ConnectionOptions{.max_message_bytes = kMaxPeerMessage});
  member.thread = std::thread([this, &member] {
    pthread_setname_np(pthread_self(), "peer");
    serve(member);
    member.held.clear();
    member.over = true;
  });
}

void PeerDoor::serve(Member& member) {
  while (true) {
    const StatusOr<std::string> bytes = member.connection->receive(net::Deadline::never());
    if (!bytes.ok()) {
      return;
    }
    const StatusOr<PeerMessage> request = decode(*bytes);
    const StatusOr<PeerMessage> result = request.ok() ? answer(member, *request) : request.status();
    const std::string text =
        result.ok() ? encode(result->head, result->bytes) : encode(checkpoint::memory::error_answer(result.status()));
    if (!member.connection->send(text, net::Deadline::after(std::chrono::seconds(60))).ok() || !request.ok()) {
      member.connection->abort();
      return;
    }
  }
}

StatusOr<PeerMessage> PeerDoor::answer(Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string what, text_field(request.head, "do"));
  if (what == "hello") {
    return hello(member, request);
  }
  if (member.origin.empty()) {
    return absl::FailedPreconditionError("a request before hello");
  }
  if (what == "have") {
    return have(member, request);
  }
  if (what == "chunk") {
    if (request.bytes.empty() || request.bytes.size() > kMaxChunkBytes || member.held.size() > kMaxHeld) {
      return absl::InvalidArgumentError("a chunk that is none, or one too many");
    }
    KEEPSTEP_ASSIGN_OR_RETURN(ChunkPointer chunk, library_.add(std::as_bytes(std::span(request.bytes))));
    const Digest digest = chunk->digest();
    member.held[digest] = std::move(chunk);
    return PeerMessage{Json::object(), {}};
  }
  if (what == "copy") {
    return copy(member, request);
  }
  if (what == "copies") {
    return copies(member, request);
  }
  if (what == "list") {
    return list(member, request);
  }
  if (what == "fetch") {
    return fetch(request);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  if (what == "drop") {
    library_.shelves().remove_copy(member.origin, key);
    return PeerMessage{Json::object(), {}};
  }
  if (what == "find") {
    return find(member, request);
  }
  if (what == "remove") {
    library_.shelves().remove(key);
    return PeerMessage{Json::object(), {}};
  }
  return absl::InvalidArgumentError(absl::StrFormat("the request '%s' is not known", what));
}

StatusOr<PeerMessage> PeerDoor::hello(Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t version, number_field(request.head, "version"));
  KEEPSTEP_ASSIGN_OR_RETURN(std::string origin, text_field(request.head, "origin"));
  if (version != kPeerVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this memory server speaks version %d, the other one %d", kPeerVersion, version));
  }
  if (origin.empty() || origin.size() > kMaxOriginBytes || !member.origin.empty()) {
    return absl::InvalidArgumentError("a hello that is none");
  }
  member.origin = std::move(origin);
  return PeerMessage{{{"origin", origin_}}, {}};
}

StatusOr<PeerMessage> PeerDoor::have(Member& member, const PeerMessage& request) {
  const size_t count = request.bytes.size() / sizeof(Digest);
  if (count * sizeof(Digest) != request.bytes.size() || count > kMaxOffered || member.held.size() > kMaxHeld) {
    return absl::InvalidArgumentError("digests that are none, or too many");
  }
  std::string has;
  for (size_t i = 0; i < count; ++i) {
    Digest digest{};
    std::copy_n(request.bytes.begin() + static_cast<std::ptrdiff_t>(i * digest.size()), digest.size(), digest.begin());
    ChunkPointer chunk = library_.chunks().find(digest);
    has += chunk == nullptr ? '0' : '1';
    if (chunk != nullptr) {
      member.held[digest] = std::move(chunk);
    }
  }
  return PeerMessage{Json::object(), std::move(has)};
}

StatusOr<PeerMessage> PeerDoor::copy(Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string etag, text_field(request.head, "etag"));
  KEEPSTEP_ASSIGN_OR_RETURN(const int64_t modified_ns, time_field(request));
  KEEPSTEP_ASSIGN_OR_RETURN(std::vector<Piece> pieces, decode_pieces(request.bytes));
  for (Piece& piece : pieces) {
    const auto held = member.held.find(piece.digest);
    piece.chunk = held != member.held.end() ? held->second : library_.chunks().find(piece.digest);
    if (piece.chunk == nullptr || piece.chunk->bytes() != piece.bytes) {
      return absl::NotFoundError(absl::StrFormat("a chunk of '%s' is not here", key.second));
    }
  }
  member.held.clear();
  StoredObject object = object_of(std::move(pieces));
  if (object.etag != etag) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is not what its pieces make", key.second));
  }
  object.modified_ns = modified_ns;
  KEEPSTEP_RETURN_IF_ERROR(library_.shelves().put_copy(member.origin, key, std::move(object)));
  return PeerMessage{Json::object(), {}};
}

StatusOr<PeerMessage> PeerDoor::copies(const Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::string destination, text_field(request.head, "destination"));
  KEEPSTEP_ASSIGN_OR_RETURN(std::string key, text_field(request.head, "key"));
  const std::map<Shelves::Key, std::string> all = library_.shelves().copies_of(member.origin);
  Json listed = Json::array();
  for (auto at = all.upper_bound({std::move(destination), std::move(key)});
       at != all.end() && listed.size() < kMaxListed; ++at) {
    listed.push_back({at->first.first, at->first.second, at->second});
  }
  return PeerMessage{{{"copies", std::move(listed)}}, {}};
}

StatusOr<PeerMessage> PeerDoor::find(const Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  const ObjectPointer object = library_.shelves().find_for(member.origin, key);
  if (object == nullptr) {
    return absl::NotFoundError("");
  }
  library_.shelves().touched(key);
  return PeerMessage{{{"modified", object->modified_ns}}, encode_pieces(object->pieces)};
}

StatusOr<PeerMessage> PeerDoor::list(const Member& member, const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string destination, text_field(request.head, "destination"));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string prefix, text_field(request.head, "prefix"));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string after, text_field(request.head, "after"));
  Json objects = Json::array();
  for (const auto& each : library_.shelves().list_for(member.origin, destination, prefix, after, kMaxListed)) {
    objects.push_back({each.key, each.bytes, each.etag, each.modified_ns});
  }
  return PeerMessage{{{"objects", std::move(objects)}}, {}};
}

StatusOr<PeerMessage> PeerDoor::fetch(const PeerMessage& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string hex, text_field(request.head, "digest"));
  KEEPSTEP_ASSIGN_OR_RETURN(const Digest digest, digest_from_hex(hex));
  const ChunkPointer chunk = library_.chunks().find(digest);
  if (chunk == nullptr) {
    return absl::NotFoundError("");
  }
  PeerMessage message{Json::object(), std::string(chunk->bytes(), '\0')};
  KEEPSTEP_RETURN_IF_ERROR(chunk->read(std::as_writable_bytes(std::span(message.bytes))));
  return message;
}

}  // namespace keepstep::memory_server
