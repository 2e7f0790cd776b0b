#include "data/corpus/token_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "data/corpus/mapped_file.h"
#include "data/corpus/token_corpus.h"
#include "data/corpus/write_all.h"

namespace keepstep::data {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

struct Limits {
  int64_t least;
  int64_t most;
};

template <typename T>
constexpr Limits limits() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

Limits limits_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return limits<uint8_t>();
    case TokenType::kInt8:
      return limits<int8_t>();
    case TokenType::kInt16:
      return limits<int16_t>();
    case TokenType::kUint16:
      return limits<uint16_t>();
    case TokenType::kInt32:
      return limits<int32_t>();
    case TokenType::kInt64:
      break;
  }
  return limits<int64_t>();
}

Status give_name(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : errno_status(absl::StrFormat("rename to '%s'", to));
}

}  // namespace

TokenWriter::TokenWriter(std::string prefix, std::string bin_path, TokenType type, Fd bin, bool joins)
    : prefix_(std::move(prefix)), bin_path_(std::move(bin_path)), type_(type), bin_(std::move(bin)), joins_(joins) {
  buffer_.reserve(kBufferBytes);
}

StatusOr<std::unique_ptr<TokenWriter>> TokenWriter::create(const std::string& prefix, TokenType type, bool overwrite) {
  if (!overwrite && access((prefix + ".idx").c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(absl::StrFormat("'%s.idx' is there already", prefix));
  }
  const std::string path = prefix + ".bin.partial";
  Fd bin(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!bin.valid()) {
    return errno_status(absl::StrFormat("create '%s'", path));
  }
  return std::unique_ptr<TokenWriter>(new TokenWriter(prefix, path, type, std::move(bin), false));
}

StatusOr<std::unique_ptr<TokenWriter>> TokenWriter::join(const std::string& prefix, const std::string& joined,
                                                         TokenType type) {
  Fd bin(::open(joined.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!bin.valid()) {
    return errno_status(absl::StrFormat("create '%s'", joined));
  }
  return std::unique_ptr<TokenWriter>(new TokenWriter(prefix, joined, type, std::move(bin), true));
}

TokenWriter::~TokenWriter() { discard(); }

void TokenWriter::discard() {
  if (!std::exchange(finished_, true)) {
    if (!joins_) {
      (void)unlink(bin_path_.c_str());
    }
    (void)unlink((prefix_ + ".idx.partial").c_str());
  }
}

Status TokenWriter::refuse(int64_t token) const {
  const Limits can = limits_of(type_);
  return absl::OutOfRangeError(absl::StrFormat(
      "token %d is not one of %s, which holds %d to %d; write '%s' with a wider type (%s)", token, name_of(type_),
      can.least, can.most, prefix_,
      token >= 0 && token <= std::numeric_limits<uint16_t>::max()                                    ? "uint16"
      : token >= std::numeric_limits<int32_t>::min() && token <= std::numeric_limits<int32_t>::max() ? "int32"
                                                                                                     : "int64"));
}

Status TokenWriter::write(std::span<const std::byte> bytes) {
  checksum_.add(bytes);
  return write_all(bin_.get(), bytes.data(), bytes.size(), bin_path_);
}

Status TokenWriter::flush() {
  KEEPSTEP_RETURN_IF_ERROR(write(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

Status TokenWriter::put(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    KEEPSTEP_RETURN_IF_ERROR(flush());
  }
  if (bytes.size() > kBufferBytes) {
    return write(bytes);
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

template <typename Token, typename From>
Status TokenWriter::put_as(const From* from, size_t count) {
  while (count > 0) {
    const size_t here = std::min(count, (kBufferBytes - buffer_.size()) / sizeof(Token));
    const size_t begin = buffer_.size();
    buffer_.resize(begin + here * sizeof(Token));
    for (size_t i = 0; i < here; ++i) {
      const Token token = static_cast<Token>(from[i]);
      std::memcpy(buffer_.data() + begin + i * sizeof(Token), &token, sizeof(Token));
    }
    from += here;
    count -= here;
    if (count > 0) {
      KEEPSTEP_RETURN_IF_ERROR(flush());
    }
  }
  return absl::OkStatus();
}

// The type must be able to hold all of them.
template <typename From>
Status TokenWriter::put_tokens(const From* from, size_t count) {
  switch (type_) {
    case TokenType::kUint8:
      return put_as<uint8_t>(from, count);
    case TokenType::kInt8:
      return put_as<int8_t>(from, count);
    case TokenType::kInt16:
      return put_as<int16_t>(from, count);
    case TokenType::kUint16:
      return put_as<uint16_t>(from, count);
    case TokenType::kInt32:
      return put_as<int32_t>(from, count);
    case TokenType::kInt64:
      break;
  }
  return put_as<int64_t>(from, count);
}

void TokenWriter::note(uint64_t length) {
  lengths_.push_back(static_cast<int32_t>(length));
  tokens_ += length;
}

Status TokenWriter::add(std::span<const int64_t> tokens) {
  const Limits can = limits_of(type_);
  for (const int64_t token : tokens) {
    if (token < can.least || token > can.most) {
      return refuse(token);
    }
  }
  if (tokens.size() > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrFormat("a sequence of %d tokens; the index counts to 2^31 - 1", tokens.size()));
  }
  KEEPSTEP_RETURN_IF_ERROR(put_tokens(tokens.data(), tokens.size()));
  note(tokens.size());
  return absl::OkStatus();
}

Status TokenWriter::add_bytes(std::string_view text, int64_t end) {
  const Limits can = limits_of(type_);
  if (end > can.most) {
    return refuse(end);
  }
  const uint64_t length = text.size() + (end >= 0 ? 1 : 0);
  if (length > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(absl::StrFormat("a document of %d bytes; the index counts to 2^31 - 1", text.size()));
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  if (type_ == TokenType::kUint8) {
    KEEPSTEP_RETURN_IF_ERROR(put(std::as_bytes(std::span(bytes, text.size()))));
  } else {
    if (type_ == TokenType::kInt8 && !text.empty()) {
      if (const uint8_t greatest = *std::max_element(bytes, bytes + text.size()); greatest > can.most) {
        return refuse(greatest);
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(put_tokens(bytes, text.size()));
  }
  if (end >= 0) {
    KEEPSTEP_RETURN_IF_ERROR(put_tokens(&end, 1));
  }
  note(length);
  return absl::OkStatus();
}

StatusOr<uint64_t> TokenWriter::append(const std::string& prefix) {
  KEEPSTEP_ASSIGN_OR_RETURN(const TokenCorpus other, TokenCorpus::open(prefix));
  const TokenIndex& index = other.index();
  if (index.type() != type_) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' has tokens of %s; '%s' is written with %s", prefix,
                                                      name_of(index.type()), prefix_, name_of(type_)));
  }
  KEEPSTEP_RETURN_IF_ERROR(flush());
  RunningChecksum added;
  KEEPSTEP_RETURN_IF_ERROR(other.for_each_slice([&](std::span<const std::byte> slice) {
    added.add(slice);
    return write(slice);
  }));
  note_all(index);
  return added.value();
}

StatusOr<uint64_t> TokenWriter::take_over(const std::string& prefix, uint64_t bytes) {
  KEEPSTEP_CHECK(joins_, "only a writer that joins finds what another one wrote");
  KEEPSTEP_ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::open(prefix + ".idx"));
  KEEPSTEP_ASSIGN_OR_RETURN(const TokenIndex index, TokenIndex::open(index_file.bytes(), index_file.path(), bytes));
  KEEPSTEP_RETURN_IF_ERROR(flush());
  RunningChecksum added;
  std::vector<std::byte> slice(kBufferBytes);
  for (uint64_t left = bytes; left > 0;) {
    const ssize_t got = read(bin_.get(), slice.data(), std::min<uint64_t>(left, slice.size()));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return errno_status(absl::StrFormat("read '%s'", bin_path_));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrFormat("'%s' ends %d bytes before the end of '%s'", bin_path_, left, prefix));
    }
    const std::span<const std::byte> piece(slice.data(), static_cast<size_t>(got));
    added.add(piece);
    checksum_.add(piece);
    left -= static_cast<uint64_t>(got);
  }
  note_all(index);
  KEEPSTEP_RETURN_IF_ERROR(index_file.check());  // zeros may pass as an index
  return added.value();
}

Status TokenWriter::sync() {
  KEEPSTEP_RETURN_IF_ERROR(flush());
  return make_durable(bin_, bin_path_);
}

void TokenWriter::note_all(const TokenIndex& index) {
  const uint64_t before = lengths_.size();
  for (uint64_t i = 0; i < index.sequences(); ++i) {
    note(index.place(i).size());
  }
  for (uint64_t d = 0; d < index.documents(); ++d) {
    documents_.push_back(static_cast<int64_t>(before + index.sequences_of(d).end));
  }
}

void TokenWriter::end_document() {
  if (documents_.back() != static_cast<int64_t>(lengths_.size())) {
    documents_.push_back(static_cast<int64_t>(lengths_.size()));
  }
}

Status TokenWriter::write_index(bool durable) {
  const std::string path = prefix_ + ".idx.partial";
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return errno_status(absl::StrFormat("create '%s'", path));
  }
  std::vector<std::byte> bytes(TokenIndex::kHeaderBytes);
  const uint64_t version = 1;
  const uint64_t sequences = lengths_.size();
  const uint64_t entries = documents_.size();
  std::memcpy(bytes.data(), "MMIDIDX\0", 9);  // plus the literal's terminating zero
  std::memcpy(bytes.data() + 9, &version, 8);
  bytes[17] = static_cast<std::byte>(type_);
  std::memcpy(bytes.data() + 18, &sequences, 8);
  std::memcpy(bytes.data() + 26, &entries, 8);
  std::vector<int64_t> pointers(lengths_.size());
  int64_t end = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    pointers[i] = end;
    end += static_cast<int64_t>(lengths_[i]) * static_cast<int64_t>(size_of(type_));
  }
  const auto put_table = [&](const auto& table) {
    return write_all(fd.get(), reinterpret_cast<const std::byte*>(table.data()), table.size() * sizeof(table[0]), path);
  };
  KEEPSTEP_RETURN_IF_ERROR(put_table(bytes));
  KEEPSTEP_RETURN_IF_ERROR(put_table(lengths_));
  KEEPSTEP_RETURN_IF_ERROR(put_table(pointers));
  KEEPSTEP_RETURN_IF_ERROR(put_table(documents_));
  return durable ? make_durable(fd, path) : absl::OkStatus();
}

Status TokenWriter::finish(bool durable) {
  end_document();
  KEEPSTEP_RETURN_IF_ERROR(flush());
  if (joins_ && ftruncate(bin_.get(), static_cast<off_t>(tokens_ * size_of(type_))) != 0) {
    return errno_status(absl::StrFormat("cut '%s' to its size", bin_path_));
  }
  if (durable) {
    KEEPSTEP_RETURN_IF_ERROR(make_durable(bin_, bin_path_));
  }
  KEEPSTEP_RETURN_IF_ERROR(write_index(durable));
  // The index of the old corpus must never exist next to the new tokens, not even for a moment.
  if (unlink((prefix_ + ".idx").c_str()) != 0 && errno != ENOENT) {
    return errno_status(absl::StrFormat("remove the old '%s.idx'", prefix_));
  }
  KEEPSTEP_RETURN_IF_ERROR(give_name(bin_path_, prefix_ + ".bin"));
  KEEPSTEP_RETURN_IF_ERROR(give_name(prefix_ + ".idx.partial", prefix_ + ".idx"));
  finished_ = true;
  return durable ? make_folder_durable(prefix_) : absl::OkStatus();
}

}  // namespace keepstep::data
