#include "data/corpus/token_index.h"

#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace keepstep::data {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr uint64_t kVersion = 1;

struct Known {
  TokenType type;
  const char* name;
  size_t bytes;
};
constexpr std::array<Known, 6> kKnown{{{TokenType::kUint8, "uint8", 1},
                                       {TokenType::kInt8, "int8", 1},
                                       {TokenType::kInt16, "int16", 2},
                                       {TokenType::kInt32, "int32", 4},
                                       {TokenType::kInt64, "int64", 8},
                                       {TokenType::kUint16, "uint16", 2}}};
constexpr const char* kNames = "uint8, int8, int16, uint16, int32, int64";

const Known& known(TokenType type) {
  for (const Known& one : kKnown) {
    if (one.type == type) {
      return one;
    }
  }
  KEEPSTEP_CHECK(false, "a token type out of nowhere");
  return kKnown[0];
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

size_t size_of(TokenType type) { return known(type).bytes; }

const char* name_of(TokenType type) { return known(type).name; }

StatusOr<TokenType> token_type(uint8_t code) {
  for (const Known& one : kKnown) {
    if (static_cast<uint8_t>(one.type) == code) {
      return one.type;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("tokens have type number %d, which is not an integer type (%s)", code, kNames));
}

StatusOr<TokenType> token_type(const std::string& name) {
  for (const Known& one : kKnown) {
    if (name == one.name) {
      return one.type;
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is no type of tokens; those are %s", name, kNames));
}

TokenType narrowest_type(uint64_t vocabulary) {
  if (vocabulary <= 256) {
    return TokenType::kUint8;
  }
  return vocabulary <= 65'536 ? TokenType::kUint16 : TokenType::kInt32;
}

StatusOr<TokenIndex> TokenIndex::open(std::span<const std::byte> bytes, const std::string& name, uint64_t token_bytes) {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s': %s", name, what));
  };
  if (bytes.size() < kHeaderBytes) {
    return wrong(absl::StrFormat("%d bytes are no index, whose header alone has %d", bytes.size(), kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return wrong("this is no Megatron index: it does not begin with MMIDIDX");
  }
  if (const auto version = load<uint64_t>(bytes.data() + 9); version != kVersion) {
    return wrong(absl::StrFormat("an index of version %d; this keepstep reads version %d", version, kVersion));
  }
  TokenIndex index;
  const auto type = token_type(static_cast<uint8_t>(bytes[17]));
  if (!type.ok()) {
    return wrong(std::string(type.status().message()));
  }
  index.type_ = *type;
  index.sequences_ = load<uint64_t>(bytes.data() + 18);
  index.entries_ = load<uint64_t>(bytes.data() + 26);
  // Compares without a product that could overflow.
  const uint64_t rest = bytes.size() - kHeaderBytes;
  const uint64_t per_sequence = sizeof(int32_t) + sizeof(int64_t);
  if (index.sequences_ > rest / per_sequence ||
      index.entries_ > (rest - index.sequences_ * per_sequence) / sizeof(int64_t)) {
    return wrong(absl::StrFormat("truncated: %d sequences and %d document entries do not fit into its %d bytes",
                                 index.sequences_, index.entries_, bytes.size()));
  }
  const uint64_t left = rest - index.sequences_ * per_sequence - index.entries_ * sizeof(int64_t);
  if (left != 0 && left != index.sequences_) {  // modes
    return wrong(absl::StrFormat("%d bytes follow the tables of %d sequences and %d document entries", left,
                                 index.sequences_, index.entries_));
  }
  index.lengths_ = bytes.data() + kHeaderBytes;
  index.pointers_ = index.lengths_ + index.sequences_ * sizeof(int32_t);
  index.document_table_ = index.pointers_ + index.sequences_ * sizeof(int64_t);

  const uint64_t size = size_of(index.type_);
  uint64_t end = 0;
  bool contiguous = true;
  for (uint64_t i = 0; i < index.sequences_; ++i) {
    const int64_t length = index.length(i);
    const int64_t pointer = index.pointer(i);
    if (length < 0 || pointer < 0 || static_cast<uint64_t>(pointer) > token_bytes ||
        static_cast<uint64_t>(length) > (token_bytes - static_cast<uint64_t>(pointer)) / size) {
      return wrong(
          absl::StrFormat("sequence %d (%d tokens of %s at byte %d) lies outside the %d bytes of its .bin "
                          "file; is that truncated, or of another index?",
                          i, length, name_of(index.type_), pointer, token_bytes));
    }
    if (static_cast<uint64_t>(pointer) % size != 0) {
      return wrong(absl::StrFormat("sequence %d begins at byte %d, in the middle of a token of %s", i, pointer,
                                   name_of(index.type_)));
    }
    contiguous = contiguous && static_cast<uint64_t>(pointer) == end;
    end = static_cast<uint64_t>(pointer) + static_cast<uint64_t>(length) * size;
    index.tokens_ += static_cast<uint64_t>(length);  // < 2^31 * 2^60 / 12: no overflow
  }
  for (uint64_t d = 0; d < index.entries_; ++d) {
    const int64_t first = index.entry(d);
    const int64_t least = d == 0 ? 0 : index.entry(d - 1);
    if (first < least || static_cast<uint64_t>(first) > index.sequences_ || (d == 0 && first != 0)) {
      return wrong(
          absl::StrFormat("entry %d of the documents is sequence %d; they begin at 0, never fall and end at %d", d,
                          first, index.sequences_));
    }
  }
  if (index.entries_ == 0 || static_cast<uint64_t>(index.entry(index.entries_ - 1)) != index.sequences_) {
    return wrong(absl::StrFormat("the documents do not end at sequence %d, the last one's end", index.sequences_));
  }
  if (!contiguous) {
    index.list_starts();
  }
  return index;
}

void TokenIndex::list_starts() {
  starts_.reserve(sequences_ + 1);
  uint64_t start = 0;
  for (uint64_t i = 0; i < sequences_; ++i) {
    starts_.push_back(start);
    start += static_cast<uint64_t>(length(i));
  }
  starts_.push_back(start);
}

int32_t TokenIndex::length(uint64_t sequence) const { return load<int32_t>(lengths_ + sequence * sizeof(int32_t)); }

int64_t TokenIndex::pointer(uint64_t sequence) const { return load<int64_t>(pointers_ + sequence * sizeof(int64_t)); }

int64_t TokenIndex::entry(uint64_t number) const { return load<int64_t>(document_table_ + number * sizeof(int64_t)); }

Range TokenIndex::place(uint64_t sequence) const {
  KEEPSTEP_CHECK(sequence < sequences_, "a sequence out of range");
  const uint64_t begin = static_cast<uint64_t>(pointer(sequence)) / size_of(type_);
  return {begin, begin + static_cast<uint64_t>(length(sequence))};
}

Range TokenIndex::sequences_of(uint64_t document) const {
  KEEPSTEP_CHECK(document < documents(), "a document out of range");
  return {static_cast<uint64_t>(entry(document)), static_cast<uint64_t>(entry(document + 1))};
}

uint64_t TokenIndex::start_of(uint64_t sequence) const {
  KEEPSTEP_CHECK(sequence <= sequences_, "a sequence out of range");
  if (sequence == sequences_) {
    return tokens_;
  }
  return contiguous() ? static_cast<uint64_t>(pointer(sequence)) / size_of(type_) : starts_[sequence];
}

uint64_t TokenIndex::sequence_at(uint64_t token) const {
  KEEPSTEP_CHECK(token < tokens_, "a token out of range");
  uint64_t low = 0;  // the last sequence that begins at or before `token` is in [low, high)
  uint64_t high = sequences_;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (start_of(middle) <= token ? low : high) = middle;
  }
  return low;  // the last of those that begin there, so never an empty sequence
}

}  // namespace keepstep::data
