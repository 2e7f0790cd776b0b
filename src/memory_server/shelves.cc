#include "memory_server/shelves.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/keys.h"
#include "checkpoint/manifest.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::ObjectInfo;

constexpr std::string_view kPins = "pins/";
constexpr std::chrono::seconds kReading{60};  // a reader asks for the next piece within this time

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ObjectInfo info_of(const std::string& key, const StoredObject& object) {
  return {key, object.bytes(), object.etag, object.modified_ns};
}

}  // namespace

StoredObject object_of(std::vector<Piece> pieces) {
  StoredObject object;
  std::string digests;
  uint64_t end = 0;
  for (const Piece& piece : pieces) {
    end += piece.bytes;
    object.ends.push_back(end);
    digests.append(reinterpret_cast<const char*>(piece.digest.data()), piece.digest.size());
  }
  object.etag = to_hex(digest_of(std::as_bytes(std::span(digests))));
  object.pieces = std::move(pieces);
  return object;
}

std::optional<uint64_t> step_of_key(std::string_view key) {
  if (key.starts_with(kPins)) {
    return checkpoint::step_of(key.substr(kPins.size()));
  }
  const size_t slash = key.find('/');
  return slash == std::string_view::npos ? std::nullopt : checkpoint::step_of(key.substr(0, slash));
}

ObjectPointer Shelves::newest(const Key& key, std::string_view without) const {
  ObjectPointer found;
  const auto look = [&](const Shelf& shelf) {
    if (const auto there = shelf.find(key); there != shelf.end()) {
      if (found == nullptr || there->second->modified_ns > found->modified_ns) {
        found = there->second;
      }
    }
  };
  look(own_);
  for (const auto& [origin, shelf] : copies_) {
    if (origin != without) {
      look(shelf);
    }
  }
  return found;
}

size_t Shelves::count() const {
  size_t count = own_.size();
  for (const auto& [origin, shelf] : copies_) {
    count += shelf.size();
  }
  return count;
}

void Shelves::tell(const Key& key) const {
  if (on_change_) {
    on_change_(key);
  }
}

StatusOr<std::string> Shelves::put(const Key& key, StoredObject object, const checkpoint::PutCondition& condition,
                                   int64_t newest_ns) {
  using Kind = checkpoint::PutCondition::Kind;
  std::string etag = object.etag;
  ObjectPointer replaced;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    const ObjectPointer there = newest(key, {});
    if ((condition.kind == Kind::kAbsent && there != nullptr) ||
        (condition.kind == Kind::kMatches && (there == nullptr || there->etag != condition.etag))) {
      const std::string store = "memory://" + key.first;
      return checkpoint::condition_failed(key.second, condition,
                                          there == nullptr ? StatusOr<ObjectInfo>(absl::NotFoundError(""))
                                                           : StatusOr<ObjectInfo>(info_of(key.second, *there)),
                                          store);
    }
    if (!own_.contains(key) && count() >= kMaxObjects) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the memory server holds %d objects, which is the most; keep fewer checkpoints", kMaxObjects));
    }
    object.modified_ns = std::max({now_ns(), newest_ns + 1, there == nullptr ? 0 : there->modified_ns + 1});
    object.sequence = ++sequence_;
    ObjectPointer& place = own_[key];
    replaced = std::exchange(place, std::make_shared<const StoredObject>(std::move(object)));
  }
  tell(key);
  return etag;
}

ObjectPointer Shelves::find(const Key& key) const { return find_for({}, key); }

ObjectPointer Shelves::find_for(const std::string& origin, const Key& key) const {
  const std::lock_guard lock(mutex_);
  return newest(key, origin);
}

ObjectPointer Shelves::find_own(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = own_.find(key);
  return found == own_.end() ? nullptr : found->second;
}

std::vector<ObjectInfo> Shelves::list(const std::string& destination, std::string_view prefix, std::string_view after,
                                      size_t most) const {
  return list_without({}, destination, prefix, after, most);
}

std::vector<ObjectInfo> Shelves::list_for(const std::string& origin, const std::string& destination,
                                          std::string_view prefix, std::string_view after, size_t most) const {
  return list_without(origin, destination, prefix, after, most);
}

std::vector<ObjectInfo> Shelves::list_without(std::string_view origin, const std::string& destination,
                                              std::string_view prefix, std::string_view after, size_t most) const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> keys;
  const auto look = [&](const Shelf& shelf) {
    const Key begin(destination, std::max(std::string(prefix), std::string(after)));
    size_t found = 0;
    for (auto at = shelf.lower_bound(begin); at != shelf.end() && found < most; ++at) {
      const auto& [of, key] = at->first;
      if (of != destination || (!key.starts_with(prefix) && key > prefix)) {
        break;
      }
      if (key > after && key.starts_with(prefix)) {
        keys.insert(key);
        ++found;
      }
    }
  };
  look(own_);
  for (const auto& [each, shelf] : copies_) {
    if (each != origin) {
      look(shelf);
    }
  }
  std::vector<ObjectInfo> listed;
  for (const std::string& key : keys) {
    if (listed.size() == most) {
      break;
    }
    listed.push_back(info_of(key, *newest({destination, key}, origin)));
  }
  return listed;
}

bool Shelves::remove(const Key& key) {
  std::vector<ObjectPointer> freed;  // without the lock
  bool own = false;
  {
    const std::lock_guard lock(mutex_);
    const auto take = [&](Shelf& shelf) {
      if (const auto found = shelf.find(key); found != shelf.end()) {
        freed.push_back(found->second);
        shelf.erase(found);
        return true;
      }
      return false;
    };
    own = take(own_);
    for (auto& [origin, shelf] : copies_) {
      take(shelf);
    }
    sequence_ += freed.empty() ? 0 : 1;
  }
  if (own) {
    tell(key);
  }
  return !freed.empty();
}

Status Shelves::put_copy(const std::string& origin, const Key& key, StoredObject object) {
  ObjectPointer replaced;
  const std::lock_guard lock(mutex_);
  if (count() >= kMaxObjects) {
    return absl::ResourceExhaustedError(absl::StrFormat("the peer holds %d objects, which is the most", kMaxObjects));
  }
  object.sequence = ++sequence_;
  replaced = std::exchange(copies_[origin][key], std::make_shared<const StoredObject>(std::move(object)));
  return absl::OkStatus();
}

void Shelves::remove_copy(const std::string& origin, const Key& key) {
  ObjectPointer freed;
  const std::lock_guard lock(mutex_);
  const auto shelf = copies_.find(origin);
  if (shelf == copies_.end()) {
    return;
  }
  if (const auto found = shelf->second.find(key); found != shelf->second.end()) {
    freed = found->second;
    shelf->second.erase(found);
    ++sequence_;
  }
  if (shelf->second.empty()) {
    copies_.erase(shelf);
  }
}

std::map<Shelves::Key, std::string> Shelves::copies_of(const std::string& origin) const {
  const std::lock_guard lock(mutex_);
  std::map<Key, std::string> found;
  if (const auto shelf = copies_.find(origin); shelf != copies_.end()) {
    for (const auto& [key, object] : shelf->second) {
      found[key] = object->etag;
    }
  }
  return found;
}

std::vector<brain::CopyOrder::Object> Shelves::own() const {
  const std::lock_guard lock(mutex_);
  std::vector<brain::CopyOrder::Object> objects;
  for (const auto& [key, object] : own_) {
    objects.push_back({key, object->etag, object->sequence});
  }
  return objects;
}

std::vector<Shelves::Version> Shelves::versions() const {
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  std::map<std::pair<std::string, uint64_t>, Version> found;
  std::set<std::pair<std::string, uint64_t>> pinned;
  std::set<Key> seen;
  const auto look = [&](const Shelf& shelf, bool own) {
    for (const auto& [key, object] : shelf) {
      const auto step = step_of_key(key.second);
      if (!step || !seen.insert(key).second) {
        continue;
      }
      const std::pair of(key.first, *step);
      if (std::string_view(key.second).starts_with(kPins)) {
        pinned.insert(of);
        continue;
      }
      const auto [at, is_new] = found.try_emplace(of);
      Version& version = at->second;
      version.facts.destination = key.first;
      version.facts.step = *step;
      const brain::Time age(now - object->modified_ns);
      version.facts.age = is_new ? age : std::min(version.facts.age, age);
      version.bytes += object->bytes();
      ++version.objects;
      if (brain::makes_exist(key.second)) {
        version.facts.complete = true;
        version.manifest = object->etag;
        version.own = own;
      }
    }
  };
  look(own_, true);
  for (const auto& [origin, shelf] : copies_) {
    look(shelf, false);
  }
  std::vector<Version> versions;
  for (auto& [of, version] : found) {
    version.facts.pinned = pinned.contains(of);
    const auto read = read_ns_.find(of);
    version.facts.in_use = read != read_ns_.end() && std::chrono::nanoseconds(now - read->second) < kReading;
    versions.push_back(std::move(version));
  }
  return versions;
}

void Shelves::touched(const Key& key) {
  const auto step = step_of_key(key.second);
  if (!step) {
    return;
  }
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  read_ns_[{key.first, *step}] = now;
  if (read_ns_.size() > 1000) {
    std::erase_if(read_ns_, [&](const auto& each) { return std::chrono::nanoseconds(now - each.second) > kReading; });
  }
}

void Shelves::remove_version(const std::string& destination, uint64_t step) {
  const std::string folder = checkpoint::folder_of(step) + "/";
  remove({destination, folder + std::string(checkpoint::kManifestName)});
  while (true) {
    const std::vector<ObjectInfo> left = list(destination, folder, {}, 1000);
    if (left.empty()) {
      return;
    }
    for (const ObjectInfo& each : left) {
      remove({destination, each.key});
    }
  }
}

std::vector<std::string> Shelves::destinations() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> found;
  for (const auto& [key, object] : own_) {
    found.insert(key.first);
  }
  for (const auto& [origin, shelf] : copies_) {
    for (const auto& [key, object] : shelf) {
      found.insert(key.first);
    }
  }
  return {found.begin(), found.end()};
}

uint64_t Shelves::changes() const {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

}  // namespace keepstep::memory_server
