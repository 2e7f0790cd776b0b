// Reads the documents of an input file, one text at a time: JSON lines, JSON, plain text.
//
// Every text is checked to be valid UTF-8. An error about a document names the file, the line and what to do. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/build/byte_source.h"
#include "data/corpus/token_index.h"

namespace keepstep::data {

// kJsonLines: one object per line; kJson: an array of objects, or a sequence of objects; kText: the file is one
// document; kTextLines: every line is one.
enum class Format { kJsonLines, kJson, kText, kTextLines };
// "jsonl", "json", "text", "text-lines"; "none", "gzip", "zstd". INVALID_ARGUMENT lists the valid names.
StatusOr<Format> format_of(const std::string& name);
StatusOr<Compression> compression_of(const std::string& name);

struct Piece {  // of the input: a file, or the lines that begin in [range.begin, range.end) of a plain one
  std::string path;
  Format format = Format::kText;
  Compression compression = Compression::kNone;
  std::optional<Range> range;
};

struct ReadCounts {
  uint64_t documents = 0;   // returned documents
  uint64_t text_bytes = 0;  // in them
  uint64_t empty = 0;       // left out: documents without text
  uint64_t unreadable = 0;  // left out: see `complaints`
};

class DocumentReader {
 public:
  static constexpr size_t kMaxDocument = size_t{1} << 30;  // bytes, as they are in the file
  static constexpr size_t kMaxComplaints = 5;

  // `field`: of the JSON objects. `skip`: documents that cannot be read are counted and left out; otherwise they are
  // errors. System errors name the path.
  static StatusOr<DocumentReader> open(const Piece& piece, std::string field, bool skip);
  DocumentReader(DocumentReader&&) noexcept;
  DocumentReader& operator=(DocumentReader&&) noexcept;
  ~DocumentReader();

  // The next text, never empty, valid until the next call; std::nullopt at the end. INVALID_ARGUMENT: broken JSON, no
  // such field, not UTF-8. DATA_LOSS: the rest of the file cannot be read (when skipping, what came before it stays).
  StatusOr<std::optional<std::string_view>> next();

  const ReadCounts& counts() const { return counts_; }
  // The first few reasons why documents were skipped.
  const std::vector<std::string>& complaints() const { return complaints_; }
  // How far the file has been read, in its own (compressed) bytes.
  uint64_t position() const;

 private:
  struct Parts;
  DocumentReader(std::unique_ptr<Parts> parts, bool skip);
  StatusOr<std::optional<std::string_view>> read();

  std::unique_ptr<Parts> parts_;
  bool skip_;
  bool ended_ = false;
  ReadCounts counts_;
  std::vector<std::string> complaints_;
};

// Whether `text` is valid UTF-8.
bool is_utf8(std::string_view text);

}  // namespace keepstep::data
