// Reads boxes of stored tensors into memory: only the chunks that hold some of them, each once and verified, on several
// threads.
//
// A chunk (sums.h) is the smallest unit that can be verified, so it is the smallest that is read. A chunk that is
// corrupt or cannot be read is requested from the next source; if none has it, the error names file and chunk.
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
  std::vector<Sum> chunks;  // empty: nothing to verify with
};

// The same files in one or more destinations, the nearest first.
struct StoredFiles {
  struct Source {
    std::shared_ptr<ObjectStore> store;
    std::string folder;  // "" or with a trailing slash
  };
  std::vector<Source> sources;
  std::vector<StoredFile> files;
};

struct ReadTally {
  uint64_t chunks = 0;     // read; a chunk read twice counts twice
  uint64_t bytes = 0;      // of these chunks
  uint64_t elsewhere = 0;  // chunks that another source than the first had to supply
};

// Reads all boxes; after an error the contents of memory are undefined. Errors: INVALID_ARGUMENT for impossible boxes;
// DATA_LOSS for chunks that no source has intact; NOT_FOUND and OUT_OF_RANGE for missing and truncated files; those of
// the store.
StatusOr<ReadTally> read_boxes(const StoredFiles& stored, std::span<const BoxRead> boxes, unsigned threads);

// Reads one chunk into `into`, which has its size. `source`: receives the source that supplied it.
Status read_chunk(const StoredFiles& stored, uint32_t file, uint64_t chunk, std::span<std::byte> into, size_t& source);

// Bytes of a chunk of a file.
uint64_t chunk_bytes(const StoredFile& file, uint64_t chunk);
inline uint64_t chunk_count(const StoredFile& file) { return (file.bytes + kChunkBytes - 1) / kChunkBytes; }

}  // namespace keepstep::checkpoint
