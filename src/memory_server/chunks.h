// Contents by their digest: what several objects, versions or ranks have in common is held once.
//
// The digest is SHA-256, computed by the server over its own copy. Equal digests are taken for equal bytes, so it must
// be one for which nobody can make two contents with the same digest, not even on purpose: a manifest's XXH3 is faster,
// but whoever made a pair for it would find the wrong half in a checkpoint, with a checksum that fits.
//
// Any thread may call everything.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "memory_server/extents.h"

namespace keepstep::memory_server {

using Digest = std::array<unsigned char, 32>;
Digest digest_of(std::span<const std::byte> bytes);
std::string to_hex(const Digest& digest);
StatusOr<Digest> digest_from_hex(std::string_view hex);

// Where the bytes of a chunk are: they stay there as long as this is held, even when the chunk is packed meanwhile.
struct Held {
  std::shared_ptr<Extent> extent;
  bool packed = false;
};

class Chunks;

class Chunk {
 public:
  Chunk(std::shared_ptr<Chunks> of, const Digest& digest, uint64_t bytes, Held held)
      : of_(std::move(of)), digest_(digest), bytes_(bytes), held_(std::move(held)) {}
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk();

  const Digest& digest() const { return digest_; }
  uint64_t bytes() const { return bytes_; }
  Held held() const;
  // All of its bytes. DATA_LOSS: they are not what was written.
  Status read(std::span<std::byte> into) const;

 private:
  friend class Chunks;
  const std::shared_ptr<Chunks> of_;
  const Digest digest_;
  const uint64_t bytes_;
  mutable std::mutex mutex_;
  Held held_;
};

using ChunkPointer = std::shared_ptr<Chunk>;

class Chunks : public std::enable_shared_from_this<Chunks> {
 public:
  explicit Chunks(std::shared_ptr<Extents> extents) : extents_(std::move(extents)) {}

  // The chunk with these bytes (not empty): one that is there already, or a new one. Errors of Extents::hold().
  StatusOr<ChunkPointer> add(std::span<const std::byte> bytes);
  // nullptr: there is none.
  ChunkPointer find(const Digest& digest) const;

  // Packs one chunk that was not tried yet. False: there is none.
  bool pack_one();
  bool waits_for_packing() const;
  // Returns when the chunk that is being packed is done: until then its memory is held, even if nobody needs it any
  // more.
  void let_packing_end();

  struct Totals {
    uint64_t chunks = 0;
    uint64_t bytes = 0;   // of contents, each once
    uint64_t stored = 0;  // of memory that holds them, without the rest of the last page
    uint64_t packed = 0;  // chunks
  };
  Totals totals() const;
  const Extents& extents() const { return *extents_; }

 private:
  friend class Chunk;
  void forget(const Digest& digest);
  void pack(Chunk& chunk);

  const std::shared_ptr<Extents> extents_;
  mutable std::mutex mutex_;
  std::map<Digest, std::weak_ptr<Chunk>> known_;
  std::vector<Digest> to_pack_;
  bool packing_ = false;
  uint64_t packings_ = 0;  // that have ended
  std::condition_variable packing_ended_;
};

}  // namespace keepstep::memory_server
