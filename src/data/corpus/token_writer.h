// Writes a corpus, PREFIX.bin and PREFIX.idx (format: token_index.h), so that all of it exists or none.
//
// Tokens go to PREFIX.bin.partial as they arrive; `finish` writes PREFIX.idx.partial, makes both durable, and renames
// them, the index last: without an index no reader takes a .bin file for a corpus. A writer destroyed before `finish`
// removes what it wrote; a killed one leaves .partial files, which the next one replaces. One thread.
//
// A writer made by `join` assembles a corpus from parts and deletes them on the way: if it ends before `finish`, what
// it wrote stays, and the next one continues with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/running_checksum.h"
#include "base/status.h"
#include "data/corpus/token_index.h"

namespace keepstep::data {

class TokenWriter {
 public:
  // ALREADY_EXISTS if there is such a corpus, unless `overwrite`. System errors name the path.
  static StatusOr<std::unique_ptr<TokenWriter>> create(const std::string& prefix, TokenType type, bool overwrite);
  // Tokens go to `joined`, in the same file system; what an earlier writer left there is for `take_over`, or is
  // overwritten.
  static StatusOr<std::unique_ptr<TokenWriter>> join(const std::string& prefix, const std::string& joined,
                                                     TokenType type);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Adds a sequence. OUT_OF_RANGE names a token that the type cannot hold, and the types that could; nothing was added.
  Status add(std::span<const int64_t> tokens);
  // The same for tokens that are already bytes, followed by `end` unless it is negative (an end-of-document token).
  Status add_bytes(std::string_view text, int64_t end);
  // Adds all of another corpus of this type, whose files are complete. Returns the checksum of the added tokens.
  StatusOr<uint64_t> append(const std::string& prefix);
  // The same for a corpus of `bytes` that an earlier writer made by `join` appended at this place, so that its .bin
  // file may be gone. Returns the checksum of the bytes that are there now. DATA_LOSS: they are not there.
  StatusOr<uint64_t> take_over(const std::string& prefix, uint64_t bytes);
  // Makes everything added so far durable.
  Status sync();
  // The sequences since the last call become a document.
  void end_document();

  // Ends an open document. After an error (a full disk, for example) nothing new exists; a corpus that was to be
  // replaced is still there. Without `durable` it does not wait for the disk, so after a power loss the files may exist
  // and hold something else.
  Status finish(bool durable = true);

  // Gives up: removes what it wrote, unless it was made by `join`. Like the destructor, but now.
  void discard();

  uint64_t tokens() const { return tokens_; }
  uint64_t sequences() const { return lengths_.size(); }
  uint64_t documents() const { return documents_.size() - 1; }
  // Of the .bin file; valid after `finish`.
  uint64_t checksum() const { return checksum_.value(); }

 private:
  TokenWriter(std::string prefix, std::string bin_path, TokenType type, Fd bin, bool joins);
  Status refuse(int64_t token) const;
  Status write(std::span<const std::byte> bytes);
  Status put(std::span<const std::byte> bytes);
  template <typename Token, typename From>
  Status put_as(const From* from, size_t count);
  template <typename From>
  Status put_tokens(const From* from, size_t count);
  Status flush();
  Status write_index(bool durable);
  void note(uint64_t length);
  void note_all(const TokenIndex& index);

  std::string prefix_;
  std::string bin_path_;  // until `finish`
  TokenType type_;
  Fd bin_;
  bool joins_;
  bool finished_ = false;
  std::vector<std::byte> buffer_;
  RunningChecksum checksum_;
  uint64_t tokens_ = 0;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
};

}  // namespace keepstep::data
