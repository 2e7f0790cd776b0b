// Boxes of stored tensors into memory: only the chunks that hold some of them are read, each once, checked, by several
// threads.
//
// A chunk (sums.h) is the least that can be checked, so it is the least that is read. A chunk that is not what was
// written, or cannot be read, is asked of the next source; when none has it, the error names file and chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/object_store.h"
#include "checkpoint/sums.h"

namespace keepstep::checkpoint {

// One box of one stored part. Dimensions from the outermost to the innermost; none for a single element.
struct BoxRead {
  uint32_t file = 0;  // index into StoredFiles::files
  uint64_t data = 0;  // where the part's elements begin in it
  uint32_t element_bytes = 1;
  std::vector<int64_t> part_lengths;  // of the part, in elements
  std::vector<int64_t> offsets;       // of the box in the part
  std::vector<int64_t> lengths;       // of the box
  std::byte* into = nullptr;          // of its first element
  std::vector<int64_t> strides;  // of memory, in bytes; the innermost must be element_bytes (if it is longer than 1)
};

struct StoredFile {
  std::string name;  // below the source's folder
  uint64_t bytes = 0;
  std::vector<Sum> chunks;  // empty: nothing to check with
};

// The same files in one or more places, the nearest first.
struct StoredFiles {
  struct Source {
    std::shared_ptr<ObjectStore> store;
    std::string folder;  // "" or with a slash at its end
  };
  std::vector<Source> sources;
  std::vector<StoredFile> files;
};

struct ReadTally {
  uint64_t chunks = 0;     // read, as often as they were
  uint64_t bytes = 0;      // of them
  uint64_t elsewhere = 0;  // chunks that a further source had to give
};

// All boxes, or an error after which memory holds anything. Errors: INVALID_ARGUMENT for boxes that cannot be;
// DATA_LOSS for chunks that no source has whole; NOT_FOUND and OUT_OF_RANGE for missing and truncated files; those of
// the store.
StatusOr<ReadTally> read_boxes(const StoredFiles& stored, std::span<const BoxRead> boxes, unsigned threads);

// One chunk into `into`, which has its size. `source`: which one gave it.
Status read_chunk(const StoredFiles& stored, uint32_t file, uint64_t chunk, std::span<std::byte> into, size_t& source);

// Bytes of a chunk of a file.
uint64_t chunk_bytes(const StoredFile& file, uint64_t chunk);
inline uint64_t chunk_count(const StoredFile& file) { return (file.bytes + kChunkBytes - 1) / kChunkBytes; }

}  // namespace keepstep::checkpoint
