// What clients see of a memory server: the objects of its shelves and of its peers, and how room is made for new ones.
//
// Any thread may call everything.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/object_store.h"
#include "memory_server/chunks.h"
#include "memory_server/shelves.h"

namespace keepstep::memory_server {

// Other servers (peer_links.h). Calls may take as long as a network does; what cannot be reached has nothing.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  // The newest object of this key on any peer; nullptr: none. Its pieces have no chunks.
  virtual ObjectPointer find(const Shelves::Key& key) = 0;
  virtual std::vector<checkpoint::ObjectInfo> list(const std::string& destination, std::string_view prefix) = 0;
  // NOT_FOUND: no peer that can be reached has it.
  virtual StatusOr<ChunkPointer> fetch(const Digest& digest, uint64_t bytes) = 0;
  virtual void remove(const Shelves::Key& key) = 0;
};

class Library {
 public:
  // Says what a drain has done with a version, and whether it is at it (drains.h).
  using AskDrains = std::function<void(const Shelves::Version&, brain::ServedVersion&)>;

  Library(std::shared_ptr<Chunks> chunks, Shelves& shelves) : chunks_(std::move(chunks)), shelves_(shelves) {}
  void set_elsewhere(Elsewhere* elsewhere) { elsewhere_ = elsewhere; }
  void set_drains(AskDrains ask) { ask_drains_ = std::move(ask); }

  // Takes contents in. When there is no room, removes versions that may go (brain/memory/room.h) until there is.
  // RESOURCE_EXHAUSTED: that did not suffice; the message has the numbers and what to do.
  StatusOr<ChunkPointer> add(std::span<const std::byte> bytes);

  StatusOr<std::string> put(const Shelves::Key& key, std::vector<Piece> pieces,
                            const checkpoint::PutCondition& condition);
  ObjectPointer find(const Shelves::Key& key);
  std::vector<checkpoint::ObjectInfo> list(const std::string& destination, std::string_view prefix,
                                           std::string_view after, size_t most);
  // The names of the folders right below `folder`, after `after`, at most `most`.
  std::vector<std::string> list_folders(const std::string& destination, const std::string& folder,
                                        const std::string& after, size_t most);
  void remove(const Shelves::Key& key);

  // The chunk of a piece, fetched if only a peer has it.
  StatusOr<ChunkPointer> chunk_of(const Piece& piece);

  Shelves& shelves() { return shelves_; }
  Chunks& chunks() { return *chunks_; }

 private:
  const std::shared_ptr<Chunks> chunks_;
  Shelves& shelves_;
  Elsewhere* elsewhere_ = nullptr;  // none: there are no peers
  AskDrains ask_drains_;
  std::mutex making_room_;
};

}  // namespace keepstep::memory_server
