#include "memory_server/chunks.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <utility>

#include "base/check.h"
#include "base/token.h"
#include "checkpoint/memory/packed.h"

namespace keepstep::memory_server {

Digest digest_of(std::span<const std::byte> bytes) {
  Digest digest{};
  KEEPSTEP_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1,
                 "OpenSSL cannot compute SHA-256");
  return digest;
}

std::string to_hex(const Digest& digest) {
  return keepstep::to_hex(std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

StatusOr<Digest> digest_from_hex(std::string_view hex) {
  Digest digest{};
  size_t count = 0;
  if (hex.size() != 2 * digest.size() ||
      OPENSSL_hexstr2buf_ex(digest.data(), digest.size(), &count, std::string(hex).c_str(), '\0') != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("a digest that is not 64 hexadecimal digits");
  }
  return digest;
}

Chunk::~Chunk() { of_->forget(digest_); }

Held Chunk::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

Status Chunk::read(std::span<std::byte> into) const {
  const Held now = held();
  if (!now.packed) {
    return now.extent->read(into);
  }
  std::string packed(now.extent->bytes(), '\0');
  KEEPSTEP_RETURN_IF_ERROR(now.extent->read(std::as_writable_bytes(std::span(packed))));
  return checkpoint::memory::unpack(packed, into);
}

StatusOr<ChunkPointer> Chunks::add(std::span<const std::byte> bytes) {
  const Digest digest = digest_of(bytes);
  if (ChunkPointer known = find(digest)) {
    return known;
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Extent> extent, extents_->hold(bytes));
  auto made = std::make_shared<Chunk>(shared_from_this(), digest, bytes.size(), Held{std::move(extent), false});
  ChunkPointer known;
  {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<Chunk>& entry = known_[digest];
    known = entry.lock();  // another thread may have been faster
    if (known == nullptr) {
      entry = made;
      to_pack_.push_back(digest);
    }
  }
  return known != nullptr ? known : made;
}

ChunkPointer Chunks::find(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(digest);
  return found == known_.end() ? nullptr : found->second.lock();
}

void Chunks::forget(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  if (const auto found = known_.find(digest); found != known_.end() && found->second.expired()) {
    known_.erase(found);
  }
}

bool Chunks::waits_for_packing() const {
  const std::lock_guard lock(mutex_);
  return packing_ || !to_pack_.empty();
}

bool Chunks::pack_one() {
  ChunkPointer chunk;
  {
    const std::lock_guard lock(mutex_);
    while (chunk == nullptr && !to_pack_.empty()) {
      const auto found = known_.find(to_pack_.back());
      to_pack_.pop_back();
      chunk = found == known_.end() ? nullptr : found->second.lock();
    }
    packing_ = chunk != nullptr;
  }
  if (chunk == nullptr) {
    return false;
  }
  pack(*chunk);
  chunk.reset();
  const std::lock_guard lock(mutex_);
  packing_ = false;
  ++packings_;
  packing_ended_.notify_all();
  return true;
}

void Chunks::let_packing_end() {
  std::unique_lock lock(mutex_);
  packing_ended_.wait(lock, [this, before = packings_] { return !packing_ || packings_ != before; });
}

void Chunks::pack(Chunk& chunk) {
  std::string bytes(chunk.bytes(), '\0');
  if (!chunk.read(std::as_writable_bytes(std::span(bytes))).ok()) {
    return;
  }
  const std::string packed = checkpoint::memory::packed(std::as_bytes(std::span(bytes)));
  if (packed.empty()) {
    return;
  }
  StatusOr<std::shared_ptr<Extent>> extent = extents_->hold(std::as_bytes(std::span(packed)));
  if (extent.ok()) {  // otherwise there is no room even for a moment
    Held held{*std::move(extent), true};
    const std::lock_guard lock(chunk.mutex_);
    std::swap(chunk.held_, held);
  }
}

Chunks::Totals Chunks::totals() const {
  std::vector<ChunkPointer> all;
  {
    const std::lock_guard lock(mutex_);
    all.reserve(known_.size());
    for (const auto& [digest, each] : known_) {
      if (ChunkPointer chunk = each.lock()) {
        all.push_back(std::move(chunk));
      }
    }
  }
  Totals totals;
  for (const ChunkPointer& chunk : all) {
    const Held held = chunk->held();
    ++totals.chunks;
    totals.bytes += chunk->bytes();
    totals.stored += held.extent->bytes();
    totals.packed += held.packed ? 1 : 0;
  }
  return totals;
}

}  // namespace keepstep::memory_server
