// A corpus of tokens on disk: PREFIX.bin and PREFIX.idx, both mapped, one copy for all processes of a node.
//
// It is read as one stream (TokenIndex): the tokens of all sequences in order, numbered from 0. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/corpus/mapped_file.h"
#include "data/corpus/read_ahead.h"
#include "data/corpus/token_index.h"

namespace keepstep::data {

class TokenCorpus {
 public:
  // Opens and checks both files; reads the whole index and none of the tokens. `prefix` may end with .bin or .idx.
  // Errors name the file.
  static StatusOr<TokenCorpus> open(const std::string& prefix);

  const TokenIndex& index() const { return index_; }
  const std::string& prefix() const { return prefix_; }
  // Of the whole index file: it identifies the corpus.
  StatusOr<uint64_t> index_checksum() const;
  uint64_t bytes() const { return tokens_->bytes().size(); }

  // Tokens [begin, begin + count) of the stream into `out`, each widened to 64 bits; they must exist. DATA_LOSS: a file
  // was truncated or changed under us; the contents of `out` are then meaningless.
  Status read(uint64_t begin, uint64_t count, int64_t* out) const;

  // The same, as stored in the file: `out` has room for `count` tokens of the corpus's type.
  Status copy(uint64_t begin, uint64_t count, std::byte* out) const;

  // For the same tokens, the basis of attention masks: the number of the sequence each belongs to, counted from 0 in
  // this read, and its position, counted from 0 at the first token of this read or of its sequence, whichever is later.
  // Empty sequences are not counted.
  Status describe(uint64_t begin, uint64_t count, int64_t* sequence, int64_t* position) const;

  // Passes all tokens of the stream to `use` as stored in the file, a few MiB at a time. An error from `use` ends it;
  // DATA_LOSS as for `read`, and then the last slice that `use` received is meaningless.
  using Use = std::function<Status(std::span<const std::byte>)>;
  Status for_each_slice(const Use& use) const;
  // Passes bytes [begin, begin + count) of the .bin file to `use`; they must exist, whatever the index says about them.
  Status with_file_bytes(uint64_t begin, uint64_t count, const Use& use) const;

  // Appends the places of these tokens to `out`, for a ReadAhead. DATA_LOSS: the index changed under us.
  Status places(uint64_t begin, uint64_t count, std::vector<FilePiece>& out) const;

 private:
  TokenCorpus() = default;
  StatusOr<Range> place_of(uint64_t sequence) const;
  // Calls take(first byte in the file, tokens) for each contiguous run in tokens [begin, begin + count).
  template <typename Take>
  Status each_run(uint64_t begin, uint64_t count, Take take) const;

  std::string prefix_;
  MappedFile index_file_;
  std::shared_ptr<const MappedFile> tokens_;  // a ReadAhead may need it longer
  TokenIndex index_;
};

}  // namespace keepstep::data
