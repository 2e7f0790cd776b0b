// A PackPlan on disk, mapped: finds the pieces of a row without using memory that grows with the corpus.
//
// Byte-exact, little endian:
//   8 bytes  "KSPACK" and two zeros       8 bytes  version, 1
//   8 bytes  key: what it was made from   8 bytes  capacity, the tokens of a row
//   8 bytes  rows R                       8 bytes  pieces P
//   8 bytes  tokens of all pieces         8 bytes  documents longer than a row
//   8 bytes  documents of fewer than two tokens
//   8 bytes  XXH3 of the 72 bytes before
//   (R + 1) x uint64  where each row begins in the pieces, and P
//   P x uint64        first token of each piece in the stream
//   P x uint32        its tokens
// Header and size are checked when the file is opened, a row when it is read: no number in it can point outside the
// file, and a malformed row is DATA_LOSS. Any thread may read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/corpus/mapped_file.h"
#include "data/corpus/pack_plan.h"

namespace keepstep::data {

struct PackHeader {
  uint64_t key = 0;
  uint64_t capacity = 0;
  uint64_t rows = 0;
  uint64_t pieces = 0;
  uint64_t tokens = 0;
  uint64_t cut = 0;
  uint64_t skipped = 0;

  static constexpr size_t kBytes = 80;
  // `name`: the file, for messages. INVALID_ARGUMENT: not such a file, incomplete, or of another version.
  static StatusOr<PackHeader> parse(std::span<const std::byte> file, const std::string& name);
};

// The pieces of row `row` < header.rows of a file that `parse` accepted; `tokens`: the length of the stream, which no
// piece exceeds.
Status read_row(std::span<const std::byte> file, const std::string& name, const PackHeader& header, uint64_t tokens,
                uint64_t row, std::vector<PackPiece>& pieces);

// Writes the file so that `path` is complete or does not exist; an existing one stays (the same key has the same
// bytes). A killed writer leaves nothing where the file system has O_TMPFILE, otherwise a file PATH.partial-*.
Status write_pack_file(const std::string& path, uint64_t key, uint64_t capacity, const PackPlan& plan);

class PackFile {
 public:
  // NOT_FOUND: there is none. INVALID_ARGUMENT: not such a file, damaged, or made from something other than `key`.
  static StatusOr<PackFile> open(const std::string& path, uint64_t key);

  const PackHeader& header() const { return header_; }
  const std::string& path() const { return file_.path(); }
  Status row(uint64_t row, uint64_t tokens, std::vector<PackPiece>& pieces) const;

 private:
  MappedFile file_;
  PackHeader header_;
};

}  // namespace keepstep::data
