// The objects that the server holds, by destination and key: its own, and copies of those of other servers.
//
// A reader sees both as one: of a key that is there several times, the one that was put last. Conditions of puts hold
// against that view. An object is a list of chunks, and immutable. Any thread may call everything.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "brain/memory/copy_order.h"
#include "brain/memory/room.h"
#include "checkpoint/object_store.h"
#include "memory_server/chunks.h"

namespace keepstep::memory_server {

struct Piece {
  Digest digest{};
  uint64_t bytes = 0;
  ChunkPointer chunk;  // null: only a peer has it
};

struct StoredObject {
  std::vector<Piece> pieces;
  std::vector<uint64_t> ends;  // of each piece in the object
  std::string etag;
  int64_t modified_ns = 0;  // since the epoch; of one key it only grows
  uint64_t sequence = 0;    // of this server's changes
  uint64_t bytes() const { return ends.empty() ? 0 : ends.back(); }
};
using ObjectPointer = std::shared_ptr<const StoredObject>;

// From its pieces. The etag is the digest of theirs.
StoredObject object_of(std::vector<Piece> pieces);

// The step of a key: "step-000000000120/..." and "pins/step-000000000120" are of 120.
std::optional<uint64_t> step_of_key(std::string_view key);

class Shelves {
 public:
  using Key = brain::CopyOrder::Key;
  static constexpr size_t kMaxObjects = 1'000'000;  // each takes a few hundred bytes besides its contents

  // Called, without any lock, after an own object was put or removed.
  using OnChange = std::function<void(const Key&)>;
  void on_change(OnChange on_change) { on_change_ = std::move(on_change); }

  // Puts an own object; returns its etag. ABORTED: the condition does not hold. `newest_ns`: when the key was last put
  // anywhere else, if that is known. RESOURCE_EXHAUSTED: kMaxObjects.
  StatusOr<std::string> put(const Key& key, StoredObject object, const checkpoint::PutCondition& condition,
                            int64_t newest_ns = 0);
  // nullptr: there is none.
  ObjectPointer find(const Key& key) const;
  // Objects of a destination with `prefix`, in the order of their keys, those after `after`, at most `most`.
  std::vector<checkpoint::ObjectInfo> list(const std::string& destination, std::string_view prefix,
                                           std::string_view after, size_t most) const;
  // Removes it wherever it is here. False: it was not.
  bool remove(const Key& key);

  // Copies of the objects of another server, `origin`: the incarnation of a server, which is new at each start.
  Status put_copy(const std::string& origin, const Key& key, StoredObject object);
  void remove_copy(const std::string& origin, const Key& key);
  std::map<Key, std::string> copies_of(const std::string& origin) const;  // with etags
  // What this server has put itself.
  std::vector<brain::CopyOrder::Object> own() const;
  ObjectPointer find_own(const Key& key) const;
  // Like find(), but without copies of objects of `origin`, which knows better itself.
  ObjectPointer find_for(const std::string& origin, const Key& key) const;
  std::vector<checkpoint::ObjectInfo> list_for(const std::string& origin, const std::string& destination,
                                               std::string_view prefix, std::string_view after, size_t most) const;

  // ---- versions ----

  struct Version {
    brain::ServedVersion facts;  // without what only drains know
    uint64_t bytes = 0;          // logical
    uint64_t objects = 0;
    std::string manifest;  // its etag; empty: not complete
    bool own = false;      // this server's writers completed it
  };
  // Ages by the clock of the system.
  std::vector<Version> versions() const;
  void touched(const Key& key);  // somebody reads it
  // Removes a version, its manifest first.
  void remove_version(const std::string& destination, uint64_t step);

  std::vector<std::string> destinations() const;
  uint64_t changes() const;  // how many there were

 private:
  using Shelf = std::map<Key, ObjectPointer>;
  ObjectPointer newest(const Key& key, std::string_view without) const;
  std::vector<checkpoint::ObjectInfo> list_without(std::string_view origin, const std::string& destination,
                                                   std::string_view prefix, std::string_view after, size_t most) const;
  size_t count() const;
  void tell(const Key& key) const;

  OnChange on_change_;
  mutable std::mutex mutex_;
  Shelf own_;
  std::map<std::string, Shelf, std::less<>> copies_;
  std::map<std::pair<std::string, uint64_t>, int64_t> read_ns_;  // when each version was last read
  uint64_t sequence_ = 0;
};

}  // namespace keepstep::memory_server
