#include "memory_server/library.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"

namespace keepstep::memory_server {

using checkpoint::ObjectInfo;
using checkpoint::PutCondition;

StatusOr<ChunkPointer> Library::add(std::span<const std::byte> bytes) {
  StatusOr<ChunkPointer> chunk = chunks_->add(bytes);
  if (!absl::IsResourceExhausted(chunk.status())) {
    return chunk;
  }
  const std::lock_guard lock(making_room_);  // another thread may just have made room
  chunk = chunks_->add(bytes);
  if (!absl::IsResourceExhausted(chunk.status())) {
    return chunk;
  }
  const std::vector<Shelves::Version> versions = shelves_.versions();
  std::vector<brain::ServedVersion> facts;
  for (const Shelves::Version& version : versions) {
    facts.push_back(version.facts);
    if (ask_drains_) {
      ask_drains_(version, facts.back());
    }
  }
  for (const size_t i : brain::to_make_room(facts)) {
    spdlog::warn("to make room, step {} of memory://{} is removed", facts[i].step, facts[i].destination);
    shelves_.remove_version(facts[i].destination, facts[i].step);
    chunks_->let_packing_end();
    chunk = chunks_->add(bytes);
    if (!absl::IsResourceExhausted(chunk.status())) {
      return chunk;
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s. The newest checkpoint of each destination, pinned ones and saves under way stay, and "
                      "nothing else is left to "
                      "remove. Raise --limit of `keepstep memory serve` (KEEPSTEP_MEMORY_LIMIT), remove a destination "
                      "that is not needed "
                      "(keepstep ckpt rm), or save elsewhere",
                      chunk.status().message()));
}

StatusOr<std::string> Library::put(const Shelves::Key& key, std::vector<Piece> pieces, const PutCondition& condition) {
  int64_t newest_ns = 0;
  if (elsewhere_ != nullptr && condition.kind != PutCondition::Kind::kNone) {
    // Conditions hold against all that can be reached; between two servers, only up to what happens in this moment.
    const ObjectPointer there = find(key);
    newest_ns = there == nullptr ? 0 : there->modified_ns;
    const ObjectPointer here = shelves_.find(key);
    if (there != nullptr && here != there) {
      if (condition.kind == PutCondition::Kind::kAbsent || condition.etag != there->etag) {
        return absl::AbortedError(
            absl::StrFormat("'%s' in memory://%s was not written: a peer has version %s. Somebody else writes there",
                            key.second, key.first, there->etag));
      }
      // It is the version that was meant; what is here is older.
      const PutCondition same = here == nullptr ? PutCondition::absent() : PutCondition::matches(here->etag);
      return shelves_.put(key, object_of(std::move(pieces)), same, newest_ns);
    }
  }
  return shelves_.put(key, object_of(std::move(pieces)), condition, newest_ns);
}

ObjectPointer Library::find(const Shelves::Key& key) {
  ObjectPointer here = shelves_.find(key);
  // Files of a step are what they are; who owns the destination, and what is pinned, may have changed elsewhere.
  if (elsewhere_ == nullptr || (here != nullptr && step_of_key(key.second) && !key.second.starts_with("pins/"))) {
    return here;
  }
  const ObjectPointer there = elsewhere_->find(key);
  return there != nullptr && (here == nullptr || there->modified_ns > here->modified_ns) ? there : here;
}

std::vector<ObjectInfo> Library::list(const std::string& destination, std::string_view prefix, std::string_view after,
                                      size_t most) {
  if (elsewhere_ == nullptr) {
    return shelves_.list(destination, prefix, after, most);
  }
  std::map<std::string, ObjectInfo> all;
  for (ObjectInfo& each : elsewhere_->list(destination, prefix)) {
    all[each.key] = std::move(each);
  }
  for (ObjectInfo& each : shelves_.list(destination, prefix, {}, Shelves::kMaxObjects)) {
    const auto [place, is_new] = all.try_emplace(each.key, each);
    if (!is_new && each.modified_ns >= place->second.modified_ns) {
      place->second = std::move(each);
    }
  }
  std::vector<ObjectInfo> listed;
  for (auto at = all.upper_bound(std::string(after)); at != all.end() && listed.size() < most; ++at) {
    listed.push_back(std::move(at->second));
  }
  return listed;
}

std::vector<std::string> Library::list_folders(const std::string& destination, const std::string& folder,
                                               const std::string& after, size_t most) {
  const std::string prefix = folder.empty() ? std::string() : folder + "/";
  std::vector<std::string> names;
  std::string last = after.empty() ? std::string() : prefix + after + "0";  // '0' follows '/': after all in it
  while (names.size() < most) {
    const std::vector<ObjectInfo> next = list(destination, prefix, last, 1);
    if (next.empty()) {
      break;
    }
    const std::string_view rest = std::string_view(next[0].key).substr(prefix.size());
    const size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
      last = next[0].key;  // an object
      continue;
    }
    names.emplace_back(rest.substr(0, slash));
    last = prefix + names.back() + "0";
  }
  return names;
}

void Library::remove(const Shelves::Key& key) {
  shelves_.remove(key);
  if (elsewhere_ != nullptr) {
    elsewhere_->remove(key);
  }
}

StatusOr<ChunkPointer> Library::chunk_of(const Piece& piece) {
  if (piece.chunk != nullptr) {
    return piece.chunk;
  }
  if (ChunkPointer here = chunks_->find(piece.digest)) {
    return here;
  }
  if (elsewhere_ == nullptr) {
    return absl::NotFoundError("a chunk that no server has");
  }
  return elsewhere_->fetch(piece.digest, piece.bytes);
}

}  // namespace keepstep::memory_server
