// Rings for tests: items whose bytes are derived from their numbers.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "data/ring/ring.h"

namespace keepstep::data {

// Byte `at` of item `number`.
inline std::byte byte_of(uint64_t number, size_t at) {
  return static_cast<std::byte>((number * 0x9e3779b97f4a7c15 + at * 31) >> 8);
}

inline std::vector<std::byte> bytes_of(uint64_t number, size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (size_t at = 0; at < bytes; ++at) {
    result[at] = byte_of(number, at);
  }
  return result;
}

inline Status put(RingWriter& writer, size_t bytes) {
  const std::vector<std::byte> content = bytes_of(writer.head(), bytes);
  const std::vector<RingPiece> pieces = {{0, content.data(), content.size()}};
  return writer.put({.batch_bytes = bytes}, pieces);
}

// As if the loader had died halfway: writes other bytes, and the second half fails.
inline Status put_half(RingWriter& writer, size_t bytes) {
  const std::vector<std::byte> content = bytes_of(~writer.head(), bytes);
  const std::vector<RingPiece> pieces = {{0, content.data(), bytes / 2}, {bytes / 2, nullptr, bytes - bytes / 2}};
  return writer.put({.batch_bytes = bytes}, pieces);
}

inline bool holds(const RingView& view, size_t bytes) {
  bool same = view.size() == bytes;
  for (size_t at = 0; same && at < bytes; ++at) {
    same = view.data()[at] == byte_of(view.item().number, at);
  }
  return same;
}

inline void wait_for(const RingReader& reader, uint64_t number) {
  while (true) {
    const uint32_t seen = reader.bell();
    if (reader.head() > number) {
      return;
    }
    reader.wait(seen);
  }
}

struct RingFixture {
  explicit RingFixture(const RingSpec& spec, uint64_t start = 0) : owner(*RingOwner::create(spec, start, 1)) {}

  std::shared_ptr<RingMemory> memory() const {
    return *RingMemory::attach(Fd(dup(owner->control_fd())), Fd(dup(owner->data_fd())));
  }
  std::unique_ptr<RingReader> reader(uint64_t position) const {
    return *RingReader::create(memory(), *owner->join(position, getpid()));
  }
  RingWriter writer() const { return RingWriter(memory()); }

  std::unique_ptr<RingOwner> owner;
};

}  // namespace keepstep::data
