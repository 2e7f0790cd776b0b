#include "memory_server/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "checkpoint/keys.h"
#include "checkpoint/store_url.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::ObjectInfo;
using checkpoint::PutCondition;
using namespace checkpoint::memory;  // NOLINT(google-build-using-namespace): the protocol

// Of what one object is made. 4 TiB in whole chunks; pieces of small tensors are far fewer.
constexpr size_t kMaxPiecesOfObject = 1'000'000;

Json json_of(const ObjectInfo& info) { return Json::array({info.key, info.bytes, info.etag, info.modified_ns}); }

StatusOr<std::map<std::string, std::string>> environment_of(const Json& request) {
  std::map<std::string, std::string> environment;
  const auto given = request.find("environment");
  if (given == request.end() || !given->is_object()) {
    return absl::InvalidArgumentError("a drain without the variables in which it finds credentials");
  }
  for (const auto& [name, value] : given->items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError("a variable that is no text");
    }
    environment[name] = value;
  }
  return environment;
}

}  // namespace

void Client::run() {
  serve();
  staged_.clear();
  pinned_.clear();
  fetched_.clear();
  arena_ = SharedMemory();
  scratch_ = {};
}

void Client::serve() {
  while (true) {
    StatusOr<Packet> packet = socket_.receive();
    if (!packet.ok()) {
      return;
    }
    const StatusOr<Json> request = parse_message(packet->bytes);
    if (!request.ok() || packet->fds_lost) {
      (void)socket_.send(
          error_answer(request.ok() ? absl::ResourceExhaustedError(Packet::kFdsLost) : request.status()).dump());
      return;
    }
    const StatusOr<Json> result = answer(*request, std::move(packet->fds));
    const std::string text =
        (result.ok() ? *result : error_answer(result.status())).dump(-1, ' ', false, Json::error_handler_t::replace);
    const int fd = memory_.get();
    const Status sent = socket_.send(text, std::span(&fd, memory_.valid() ? 1 : 0));
    memory_.reset();
    if (stop_) {
      desk_.stop();
    }
    if (!sent.ok()) {
      return;
    }
  }
}

StatusOr<Json> Client::answer(const Json& request, std::vector<Fd> fds) {
  pinned_.clear();
  fetched_.clear();
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string what, text_field(request, "do"));
  if (what == "hello") {
    return hello(request);
  }
  if (what == "status") {
    return desk_.status();
  }
  if (what == "stop") {
    KEEPSTEP_RETURN_IF_ERROR(desk_.may_stop(request.value("force", Json(false)) == true));
    stop_ = true;
    return Json::object();
  }
  if (destination_.empty()) {
    return absl::FailedPreconditionError("a request before hello");
  }
  if (what == "arena") {
    if (fds.size() != 1) {
      return absl::InvalidArgumentError("an arena without its descriptor");
    }
    KEEPSTEP_ASSIGN_OR_RETURN(arena_, SharedMemory::attach(std::move(fds[0]), kArenaBytes));
    return Json::object();
  }
  if (what == "chunk") {
    return chunk(request);
  }
  if (what == "abandon") {
    staged_.clear();
    return Json::object();
  }
  if (what == "commit") {
    return commit(request);
  }
  if (what == "read") {
    return read(request);
  }
  if (what == "list") {
    return list(request);
  }
  if (what == "folders") {
    return folders(request);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  if (what == "head") {
    const ObjectPointer object = library_.find(key);
    if (object == nullptr) {
      return checkpoint::no_such_object(key.second, words());
    }
    return Json{{"object", json_of({key.second, object->bytes(), object->etag, object->modified_ns})}};
  }
  if (what == "remove") {
    library_.remove(key);
    return Json::object();
  }
  return absl::InvalidArgumentError(absl::StrFormat("the request '%s' is not known", what));
}

StatusOr<Json> Client::hello(const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t version, number_field(request, "version"));
  if (version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this machine's memory server speaks version %d, this process version %d: end it (keepstep memory stop) when "
        "what it holds is not needed any more",
        kProtocolVersion, version));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::string destination, text_field(request, "destination"));
  if (!is_destination_name(destination)) {
    return absl::InvalidArgumentError("a destination without a valid name");
  }
  if (request.contains("drain")) {
    DrainRequest drain{.destination = destination};
    KEEPSTEP_ASSIGN_OR_RETURN(drain.url, text_field(request, "drain"));
    KEEPSTEP_ASSIGN_OR_RETURN(drain.keep, number_field(request, "drain_keep"));
    KEEPSTEP_ASSIGN_OR_RETURN(drain.environment, environment_of(request));
    KEEPSTEP_RETURN_IF_ERROR(desk_.drain(drain));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(memory_, library_.chunks().extents().for_readers());
  destination_ = std::move(destination);
  return Json{{"version", kProtocolVersion}, {"pid", getpid()}};
}

StatusOr<Shelves::Key> Client::key_of(const Json& request) const {
  KEEPSTEP_ASSIGN_OR_RETURN(std::string key, text_field(request, "key"));
  KEEPSTEP_RETURN_IF_ERROR(checkpoint::check_key(key));
  return Shelves::Key{destination_, std::move(key)};
}

StatusOr<Json> Client::chunk(const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t slot, number_field(request, "slot"));
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t bytes, number_field(request, "bytes"));
  if (!arena_.valid() || slot >= kSlots || bytes == 0 || bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError("a chunk that is in no arena");
  }
  if (staged_.size() >= kMaxPiecesOfObject) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("an object of more than %d pieces; write several smaller ones", kMaxPiecesOfObject));
  }
  // A copy first: the digest must be that of the bytes which are kept, whatever the client does to its arena.
  scratch_.resize(kMaxChunkBytes);
  std::memcpy(scratch_.data(), arena_.data() + slot * kMaxChunkBytes, bytes);
  KEEPSTEP_ASSIGN_OR_RETURN(ChunkPointer chunk, library_.add(std::span(scratch_).first(bytes)));
  const Digest digest = chunk->digest();
  staged_.push_back({digest, bytes, std::move(chunk)});
  return Json::object();
}

StatusOr<Json> Client::commit(const Json& request) {
  std::vector<Piece> pieces = std::exchange(staged_, {});
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t kind, number_field(request, "condition"));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string etag, text_field(request, "etag"));
  if (kind > static_cast<uint64_t>(PutCondition::Kind::kMatches)) {
    return absl::InvalidArgumentError("a condition that is none");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::string made, library_.put(key, std::move(pieces),
                                                           PutCondition{static_cast<PutCondition::Kind>(kind), etag}));
  return Json{{"etag", std::move(made)}};
}

StatusOr<Json> Client::read(const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Shelves::Key key, key_of(request));
  KEEPSTEP_ASSIGN_OR_RETURN(uint64_t offset, number_field(request, "offset"));
  KEEPSTEP_ASSIGN_OR_RETURN(uint64_t bytes, number_field(request, "bytes"));
  const ObjectPointer object = library_.find(key);
  if (object == nullptr) {
    return checkpoint::no_such_object(key.second, words());
  }
  if (offset > object->bytes() || bytes > object->bytes() - offset) {
    return checkpoint::beyond_end(key.second, object->bytes(), offset, bytes, words());
  }
  library_.shelves().touched(key);
  Json pieces = Json::array();
  size_t i = std::upper_bound(object->ends.begin(), object->ends.end(), offset) - object->ends.begin();
  for (; bytes > 0 && pieces.size() < kMaxPieces; ++i) {
    const Piece& piece = object->pieces[i];
    KEEPSTEP_ASSIGN_OR_RETURN(ChunkPointer chunk, library_.chunk_of(piece));
    const uint64_t skip = offset - (object->ends[i] - piece.bytes);
    const uint64_t take = std::min(bytes, piece.bytes - skip);
    Held held = chunk->held();
    pieces.push_back({held.extent->at(), held.extent->bytes(), piece.bytes, held.packed ? 1 : 0, skip, take});
    pinned_.push_back(std::move(held));
    fetched_.push_back(std::move(chunk));
    offset += take;
    bytes -= take;
  }
  return Json{{"pieces", std::move(pieces)}};
}

StatusOr<Json> Client::list(const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string prefix, text_field(request, "prefix"));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string after, text_field(request, "after"));
  KEEPSTEP_RETURN_IF_ERROR(checkpoint::check_prefix(prefix));
  Json objects = Json::array();
  for (const ObjectInfo& each : library_.list(destination_, prefix, after, kMaxNames)) {
    objects.push_back(json_of(each));
  }
  return Json{{"objects", std::move(objects)}};
}

StatusOr<Json> Client::folders(const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string folder, text_field(request, "folder"));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string after, text_field(request, "after"));
  if (!folder.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(checkpoint::check_key(folder));
  }
  return Json{{"names", library_.list_folders(destination_, folder, after, kMaxNames)}};
}

}  // namespace keepstep::memory_server
