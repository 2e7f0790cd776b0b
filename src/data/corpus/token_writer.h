// Writes a corpus, PREFIX.bin and PREFIX.idx (token_index.h has the format), so that either all of it is there or none.
//
// Tokens go to PREFIX.bin.partial as they come; `finish` writes PREFIX.idx.partial, makes both durable, and gives them
// their names, the index last: without an index no reader takes a .bin file for a corpus. A writer that is destroyed
// before `finish` removes what it wrote; one that is killed leaves .partial files, which the next one replaces. One
// thread.
//
// One that was made by `join` puts a corpus together of parts and deletes them on its way: what it wrote stays when it
// ends before `finish`, and the next one goes on with it.
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
  // ALREADY_EXISTS unless `overwrite`: there is such a corpus. Errors of the system name the path.
  static StatusOr<std::unique_ptr<TokenWriter>> create(const std::string& prefix, TokenType type, bool overwrite);
  // Tokens go to `joined`, in the same file system; what an earlier writer left there is for `take_over`, or is written
  // over.
  static StatusOr<std::unique_ptr<TokenWriter>> join(const std::string& prefix, const std::string& joined,
                                                     TokenType type);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Adds a sequence. OUT_OF_RANGE: a token that the type cannot hold, and which types could; nothing was added then.
  Status add(std::span<const int64_t> tokens);
  // The same with tokens that are bytes already, and then `end` if it is not negative (an end-of-document token).
  Status add_bytes(std::string_view text, int64_t end);
  // Adds all of another corpus of this type, whose files are whole. Returns the checksum of the tokens that were added.
  StatusOr<uint64_t> append(const std::string& prefix);
  // The same for a corpus of `bytes` that an earlier writer of `join` appended at this place, so that its .bin file may
  // be gone. Returns the checksum of what is there now. DATA_LOSS: it is not there.
  StatusOr<uint64_t> take_over(const std::string& prefix, uint64_t bytes);
  // All that was added is on the disk.
  Status sync();
  // The sequences since the last call are a document.
  void end_document();

  // Ends an open document. An error (a full disk, say): nothing new is there; a corpus that was to be replaced still
  // is.
  // Not `durable`: it waits for no disk, so that after a power loss the files may be there and hold something else.
  Status finish(bool durable = true);

  // Gives up: removes what it wrote, unless it is of `join`. As its end does, but now.
  void discard();

  uint64_t tokens() const { return tokens_; }
  uint64_t sequences() const { return lengths_.size(); }
  uint64_t documents() const { return documents_.size() - 1; }
  // Of the .bin file; after `finish`.
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
