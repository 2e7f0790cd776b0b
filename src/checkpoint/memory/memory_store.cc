#include "checkpoint/memory/memory_store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/keys.h"
#include "checkpoint/memory/packed.h"

namespace keepstep::checkpoint::memory {
namespace {

// A part of a chunk in the server's memory, as the answer to "read" describes it.
struct StoredPiece {
  uint64_t at = 0;      // in the server's memory
  uint64_t stored = 0;  // bytes there
  uint64_t bytes = 0;   // of the whole chunk
  bool packed = false;
  uint64_t skip = 0;  // bytes of the chunk before those that are meant
  uint64_t take = 0;
};

StatusOr<StoredPiece> piece_of(const Json& told) {
  if (!told.is_array() || told.size() != 6 ||
      std::any_of(told.begin(), told.end(), [](const Json& each) { return !each.is_number_unsigned(); })) {
    return absl::InvalidArgumentError("the memory server describes a piece that is none");
  }
  StoredPiece piece{told[0], told[1], told[2], told[3] != 0, told[4], told[5]};
  if (piece.bytes > kMaxChunkBytes || piece.stored > kMaxChunkBytes || piece.skip > piece.bytes ||
      piece.take > piece.bytes - piece.skip || (!piece.packed && piece.stored != piece.bytes)) {
    return absl::InvalidArgumentError("the memory server describes a piece that cannot be");
  }
  return piece;
}

Status read_piece(const MemoryLink& link, const StoredPiece& piece, std::span<std::byte> into) {
  if (!piece.packed) {
    return link.read_memory(piece.at + piece.skip, into);
  }
  std::string packed(piece.stored, '\0');
  KEEPSTEP_RETURN_IF_ERROR(link.read_memory(piece.at, std::as_writable_bytes(std::span(packed))));
  if (piece.take == piece.bytes) {
    return unpack(packed, into);
  }
  std::vector<std::byte> whole(piece.bytes);
  KEEPSTEP_RETURN_IF_ERROR(unpack(packed, whole));
  std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(piece.skip), piece.take, into.begin());
  return absl::OkStatus();
}

// Reads what one answer to "read" describes; returns how many bytes that were.
StatusOr<size_t> read_pieces(const MemoryLink& link, const Json& answer, std::span<std::byte> into) {
  const auto pieces = answer.find("pieces");
  if (pieces == answer.end() || !pieces->is_array() || pieces->size() > kMaxPieces) {
    return absl::InvalidArgumentError("the memory server describes no pieces");
  }
  size_t done = 0;
  for (const Json& each : *pieces) {
    KEEPSTEP_ASSIGN_OR_RETURN(const StoredPiece piece, piece_of(each));
    if (piece.take > into.size() - done) {
      return absl::InvalidArgumentError("the memory server describes more than was asked for");
    }
    KEEPSTEP_RETURN_IF_ERROR(read_piece(link, piece, into.subspan(done, piece.take)));
    done += piece.take;
  }
  return done;
}

Json commit_request(std::string_view key, const PutCondition& condition) {
  return {{"do", "commit"},
          {"key", std::string(key)},
          {"condition", static_cast<uint64_t>(condition.kind)},
          {"etag", condition.etag}};
}

StatusOr<ObjectInfo> info_of(const Json& told) {
  if (!told.is_array() || told.size() != 4 || !told[0].is_string() || !told[1].is_number_unsigned() ||
      !told[2].is_string() || !told[3].is_number_integer()) {
    return absl::InvalidArgumentError("the memory server describes an object that is none");
  }
  return ObjectInfo{told[0], told[1], told[2], told[3]};
}

}  // namespace

// Hands chunks over through the arena of its own connection. Without a commit the server forgets them when the
// connection is given back or closed.
class MemoryWriter final : public ObjectWriter {
 public:
  MemoryWriter(MemoryStore& store, std::unique_ptr<MemoryLink> link, std::string key)
      : store_(store), link_(std::move(link)), key_(std::move(key)) {}

  ~MemoryWriter() override { end(); }

  Status append(std::span<const std::byte> bytes) override {
    KEEPSTEP_RETURN_IF_ERROR(state_);
    while (!bytes.empty() && state_.ok()) {
      state_ = room();
      if (!state_.ok()) {
        break;
      }
      const auto bite = bytes.first(std::min(bytes.size(), kMaxChunkBytes - filled_));
      std::memcpy(arena_ + slot_ * kMaxChunkBytes + filled_, bite.data(), bite.size());
      filled_ += bite.size();
      bytes = bytes.subspan(bite.size());
      if (filled_ == kMaxChunkBytes) {
        state_ = hand_over();
      }
    }
    return state_.ok() ? state_ : fail();
  }

  void begin_piece() override {
    if (state_.ok() && filled_ > 0) {
      state_ = hand_over();  // an error is that of the next append or commit
    }
  }

  StatusOr<std::string> commit() override { return commit_if(PutCondition::none()); }

  StatusOr<std::string> commit_if(const PutCondition& condition) {
    if (state_.ok() && filled_ > 0) {
      state_ = hand_over();
    }
    while (state_.ok() && under_way_ > 0) {
      state_ = take_answer();
    }
    if (!state_.ok()) {
      return fail();
    }
    const StatusOr<Json> answer = link_->ask(commit_request(key_, condition));
    state_ = absl::FailedPreconditionError(absl::StrFormat("'%s' has been committed, or failed", key_));
    if (!answer.ok()) {
      const Status why = store_.failed(answer.status());
      end();
      return why;
    }
    StatusOr<std::string> etag = text_field(*answer, "etag");
    end();
    return etag;
  }

 private:
  // Waits until there is room in the current slot.
  Status room() {
    if (arena_ == nullptr) {
      KEEPSTEP_ASSIGN_OR_RETURN(arena_, link_->arena());
    }
    while (filled_ == 0 && under_way_ == kSlots) {
      KEEPSTEP_RETURN_IF_ERROR(take_answer());
    }
    return absl::OkStatus();
  }

  Status hand_over() {
    KEEPSTEP_RETURN_IF_ERROR(link_->send({{"do", "chunk"}, {"slot", slot_}, {"bytes", filled_}}));
    ++under_way_;
    slot_ = (slot_ + 1) % kSlots;
    filled_ = 0;
    return absl::OkStatus();
  }

  Status take_answer() {
    --under_way_;
    return link_->receive().status();
  }

  // The first error, and from then on the same one.
  Status fail() {
    state_ = store_.failed(state_);
    end();
    return state_;
  }

  void end() {
    if (link_ == nullptr) {
      return;
    }
    bool sound = true;
    while (under_way_ > 0 && sound) {
      sound = !absl::IsUnavailable(take_answer());
    }
    if (sound && link_->ask({{"do", "abandon"}}).ok()) {
      store_.give_back(std::move(link_));
    } else {
      store_.forget(*link_);
      link_.reset();
    }
  }

  MemoryStore& store_;
  std::unique_ptr<MemoryLink> link_;  // null: it is over
  const std::string key_;
  Status state_;
  std::byte* arena_ = nullptr;
  size_t slot_ = 0;       // that is being filled
  size_t filled_ = 0;     // bytes in it
  size_t under_way_ = 0;  // slots whose answer has not come
};

MemoryStore::MemoryStore(DestinationSettings settings, std::string command, bool has_peers)
    : settings_(std::move(settings)), command_(std::move(command)), has_peers_(has_peers), process_(getpid()) {}

StatusOr<std::unique_ptr<MemoryLink>> MemoryStore::take(If why) {
  {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) {
      process_ = getpid();
      idle_.clear();
      sockets_.clear();
    }
    while (!idle_.empty()) {
      std::unique_ptr<MemoryLink> link = std::move(idle_.back());
      idle_.pop_back();
      // The server may have ended, and another one have started, since this was used.
      char byte = 0;
      if (recv(link->socket(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        return link;
      }
      sockets_.erase(link->socket());
    }
  }
  StatusOr<std::unique_ptr<MemoryLink>> link = why == If::kWriting || has_peers_
                                                   ? MemoryLink::connect_or_start(settings_, command_)
                                                   : MemoryLink::connect(settings_);
  KEEPSTEP_RETURN_IF_ERROR(link.status());
  const std::lock_guard lock(mutex_);
  if (interrupted_) {
    return interrupted(describe());
  }
  sockets_.insert((*link)->socket());
  return link;
}

void MemoryStore::give_back(std::unique_ptr<MemoryLink> link) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(link));
}

void MemoryStore::forget(const MemoryLink& link) {
  const std::lock_guard lock(mutex_);
  sockets_.erase(link.socket());
}

Status MemoryStore::failed(const Status& why) const { return interrupted_ ? interrupted(describe()) : why; }

StatusOr<Json> MemoryStore::ask(If why, const Json& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<MemoryLink> link, take(why));
  StatusOr<Json> answer = link->ask(request);
  if (!answer.ok() && absl::IsUnavailable(answer.status())) {
    forget(*link);
    return failed(answer.status());
  }
  give_back(std::move(link));
  return answer;
}

StatusOr<std::string> MemoryStore::put(std::string_view key, std::span<const std::byte> bytes,
                                       const PutCondition& condition) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  if (bytes.size() > kMaxPutBytes) {
    return too_large_for_put(key, bytes.size());
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<MemoryLink> link, take(If::kWriting));
  MemoryWriter writer(*this, std::move(link), std::string(key));
  KEEPSTEP_RETURN_IF_ERROR(writer.append(bytes));
  return writer.commit_if(condition);
}

StatusOr<std::unique_ptr<ObjectWriter>> MemoryStore::create(std::string_view key, uint64_t expected_bytes) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<MemoryLink> link, take(If::kWriting));
  (void)expected_bytes;  // how much of it is there already, nobody knows yet
  return std::make_unique<MemoryWriter>(*this, std::move(link), std::string(key));
}

Status MemoryStore::read(std::string_view key, uint64_t offset, std::span<std::byte> into) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  StatusOr<std::unique_ptr<MemoryLink>> link = take(If::kReading);
  if (!link.ok()) {
    return absl::IsNotFound(link.status()) ? no_such_object(key, describe()) : link.status();
  }
  Status result;
  do {  // once also for nothing: that the object is there is asked all the same
    const StatusOr<Json> answer =
        (*link)->ask({{"do", "read"}, {"key", std::string(key)}, {"offset", offset}, {"bytes", uint64_t{into.size()}}});
    const StatusOr<size_t> got = answer.ok() ? read_pieces(**link, *answer, into) : answer.status();
    result = got.status();
    if (got.ok() && *got == 0 && !into.empty()) {
      result = absl::DataLossError("the memory server sent nothing");
    }
    if (result.ok()) {
      offset += *got;
      into = into.subspan(*got);
    }
  } while (result.ok() && !into.empty());
  if (absl::IsUnavailable(result)) {
    forget(**link);
    return failed(result);
  }
  give_back(*std::move(link));
  return result;
}

StatusOr<Object> MemoryStore::read_all(std::string_view key, uint64_t max_bytes) {
  constexpr int kTries = 10;
  max_bytes = std::min(max_bytes, kMaxReadAllBytes);
  for (int i = 0; i < kTries; ++i) {
    KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo info, head(key));
    if (info.bytes > max_bytes) {
      return too_large_to_read(key, info.bytes, max_bytes, describe());
    }
    Object object{std::string(info.bytes, '\0'), info.etag};
    const Status read_it = read(key, 0, std::as_writable_bytes(std::span(object.bytes)));
    if (read_it.ok()) {
      const StatusOr<ObjectInfo> after = head(key);
      if (after.ok() && after->etag == info.etag) {
        return object;
      }
    } else if (!absl::IsOutOfRange(read_it) && !absl::IsNotFound(read_it)) {
      return read_it;
    }
  }
  return absl::AbortedError(absl::StrFormat("'%s' in %s was replaced each time that it was read", key, describe()));
}

StatusOr<ObjectInfo> MemoryStore::head(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  const StatusOr<Json> answer = ask(If::kReading, {{"do", "head"}, {"key", std::string(key)}});
  if (!answer.ok()) {
    return absl::IsNotFound(answer.status()) ? no_such_object(key, describe()) : answer.status();
  }
  return info_of(answer->value("object", Json()));
}

StatusOr<std::vector<ObjectInfo>> MemoryStore::list(std::string_view prefix) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));
  std::vector<ObjectInfo> listed;
  while (true) {
    const StatusOr<Json> answer = ask(If::kReading, {{"do", "list"},
                                                     {"prefix", std::string(prefix)},
                                                     {"after", listed.empty() ? std::string() : listed.back().key}});
    if (!answer.ok()) {
      return absl::IsNotFound(answer.status()) ? StatusOr<std::vector<ObjectInfo>>(std::move(listed)) : answer.status();
    }
    const Json objects = answer->value("objects", Json());
    for (const Json& each : objects) {
      KEEPSTEP_ASSIGN_OR_RETURN(ObjectInfo info, info_of(each));
      if (listed.size() >= kMaxListed) {
        return too_many_listed(prefix, describe());
      }
      listed.push_back(std::move(info));
    }
    if (objects.size() < kMaxNames) {
      return listed;
    }
  }
}

StatusOr<std::vector<std::string>> MemoryStore::list_folders(std::string_view folder) {
  if (!folder.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(check_key(folder));
  }
  std::vector<std::string> names;
  while (true) {
    const StatusOr<Json> answer = ask(
        If::kReading,
        {{"do", "folders"}, {"folder", std::string(folder)}, {"after", names.empty() ? std::string() : names.back()}});
    if (!answer.ok()) {
      return absl::IsNotFound(answer.status()) ? StatusOr<std::vector<std::string>>(std::move(names)) : answer.status();
    }
    const Json more = answer->value("names", Json());
    for (const Json& each : more) {
      if (!each.is_string() || names.size() >= kMaxListed) {
        return too_many_listed(folder, describe());
      }
      names.push_back(each);
    }
    if (more.size() < kMaxNames) {
      return names;
    }
  }
}

Status MemoryStore::remove(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  const Status removed = ask(If::kReading, {{"do", "remove"}, {"key", std::string(key)}}).status();
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

StatusOr<uint64_t> MemoryStore::remove_leftovers(std::string_view prefix, std::chrono::seconds /*older_than*/) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));
  return uint64_t{0};
}

std::string MemoryStore::describe() const { return "memory://" + settings_.name; }

void MemoryStore::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (process_ == getpid()) {
    for (const int socket : sockets_) {
      shutdown(socket, SHUT_RDWR);
    }
  }
}

}  // namespace keepstep::checkpoint::memory
