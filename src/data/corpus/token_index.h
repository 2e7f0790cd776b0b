// Where the sequences of a corpus are in its file of tokens: Megatron's index, PREFIX.idx next to PREFIX.bin.
//
// Byte-exact, little endian, as written by megatron.core.datasets.indexed_dataset (read: version 0.16):
//   9 bytes  "MMIDIDX" and two zeros     8 bytes  version, 1           1 byte   the type of a token (TokenType)
//   8 bytes  number of sequences S       8 bytes  number of entries D of the last table
//   S x int32  tokens of each sequence
//   S x int64  where each begins in the .bin file, in bytes
//   D x int64  the first sequence of each document, from 0, and S as the last entry (D is documents + 1)
//   S x int8   modes, in multimodal corpora only; not read
// Nothing is aligned (the tables begin at byte 34), so entries are copied out one by one.
//
// An index refers to memory that its caller owns. All of it is checked once, on open: after that, no number in it can
// point outside the .bin file. Any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace keepstep::data {

enum class TokenType : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

// Bytes of one token.
size_t size_of(TokenType type);
const char* name_of(TokenType type);
// The type with this number, or with this name ("uint16"). INVALID_ARGUMENT lists the valid ones.
StatusOr<TokenType> token_type(uint8_t code);
StatusOr<TokenType> token_type(const std::string& name);

// The type in which Megatron writes tokens of a vocabulary this large.
TokenType narrowest_type(uint64_t vocabulary);

struct Range {  // [begin, end)
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class TokenIndex {
 public:
  static constexpr size_t kHeaderBytes = 34;

  // `bytes`: the whole .idx file, which must outlive the index; `name`: its path, for messages; `token_bytes`: the size
  // of its .bin file. INVALID_ARGUMENT says what is wrong and where: not an index, another version, a non-integer type,
  // truncated or too long, a sequence outside the .bin file, documents out of order. Reads all of it once.
  static StatusOr<TokenIndex> open(std::span<const std::byte> bytes, const std::string& name, uint64_t token_bytes);

  TokenType type() const { return type_; }
  uint64_t sequences() const { return sequences_; }
  uint64_t documents() const { return entries_ - 1; }
  uint64_t tokens() const { return tokens_; }  // of all sequences

  // Where sequence i < sequences() is in the .bin file, in tokens.
  Range place(uint64_t sequence) const;
  // The sequences of document d < documents().
  Range sequences_of(uint64_t document) const;

  // The stream: all sequences in the order of the index, with tokens numbered from 0. Returns the number of the
  // sequence's first token, or (for sequences()) the number of all tokens.
  uint64_t start_of(uint64_t sequence) const;
  // The sequence that holds token `token` < tokens(). Logarithmic.
  uint64_t sequence_at(uint64_t token) const;
  // Whether the stream is the .bin file: each sequence begins where the previous one ends. Then it needs no table.
  bool contiguous() const { return starts_.empty(); }

 private:
  void list_starts();
  int32_t length(uint64_t sequence) const;
  int64_t pointer(uint64_t sequence) const;
  int64_t entry(uint64_t number) const;

  TokenType type_ = TokenType::kUint8;
  uint64_t sequences_ = 0;
  uint64_t entries_ = 0;
  uint64_t tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* document_table_ = nullptr;
  std::vector<uint64_t> starts_;  // of sequences, then the end; empty where the .bin file is the stream
};

}  // namespace keepstep::data
