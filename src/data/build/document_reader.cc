#include "data/build/document_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data/build/json_splitter.h"
#include "data/build/sliding_buffer.h"

static_assert(keepstep::data::SlidingBuffer::kPadding >= simdjson::SIMDJSON_PADDING);

namespace keepstep::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

uint64_t lines_in(std::string_view text) { return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')); }

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// Lines of a plain file before byte `end`: needed only to report an error in the middle of it.
uint64_t lines_before(const std::string& path, uint64_t end) {
  const auto file = ByteSource::open(path, Compression::kNone, 0);
  std::vector<char> block(size_t{1} << 20);
  uint64_t lines = 0;
  for (uint64_t at = 0; file.ok() && at < end;) {
    const auto got = (*file)->read(block.data(), std::min<uint64_t>(block.size(), end - at));
    if (!got.ok() || *got == 0) {
      break;
    }
    lines += lines_in({block.data(), *got});
    at += *got;
  }
  return lines;
}

// For a range, the byte before it is read as well: a line that begins with the range follows a line end, and any other
// line belongs to the range before.
uint64_t first_byte(const Piece& piece) { return piece.range && piece.range->begin > 0 ? piece.range->begin - 1 : 0; }

template <typename Value, size_t kCount>
StatusOr<Value> named(const std::array<std::pair<const char*, Value>, kCount>& all, const std::string& name,
                      const char* what) {
  std::string known;
  for (const auto& [each, value] : all) {
    if (name == each) {
      return value;
    }
    known += (known.empty() ? "" : ", ") + std::string(each);
  }
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is not a %s; known are %s", name, what, known));
}

}  // namespace

StatusOr<Format> format_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, Format>, 4> kAll{{{"jsonl", Format::kJsonLines},
                                                                       {"json", Format::kJson},
                                                                       {"text", Format::kText},
                                                                       {"text-lines", Format::kTextLines}}};
  return named(kAll, name, "format");
}

StatusOr<Compression> compression_of(const std::string& name) {
  static constexpr std::array<std::pair<const char*, Compression>, 3> kAll{
      {{"none", Compression::kNone}, {"gzip", Compression::kGzip}, {"zstd", Compression::kZstd}}};
  return named(kAll, name, "compression");
}

bool is_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

struct DocumentReader::Parts {
  Piece piece;
  std::string field;
  SlidingBuffer buffer;
  simdjson::dom::parser parser{kMaxDocument + SlidingBuffer::kPadding};
  JsonSplitter splitter;
  uint64_t offset = 0;    // of the buffer's first byte in the decompressed file
  uint64_t line = 1;      // of that byte, in this piece
  uint64_t searched = 0;  // bytes of the window known to hold no end of line
  size_t used = 0;        // of the window, by the document returned last
  bool file_ended = false;
  bool text_returned = false;

  void drop_used() {
    line += lines_in(buffer.view().substr(0, used));
    offset += used;
    buffer.drop(used);
    used = 0;
  }

  Status more() {
    KEEPSTEP_ASSIGN_OR_RETURN(const bool any, buffer.more());
    file_ended = !any;
    return absl::OkStatus();
  }

  // Describes where in the file the document at `at` of the window is.
  std::string place(size_t at) const {
    const uint64_t before = first_byte(piece) > 0 ? lines_before(piece.path, first_byte(piece)) : 0;
    return absl::StrFormat("'%s' line %d", piece.path, before + line + lines_in(buffer.view().substr(0, at)));
  }

  Status wrong(size_t at, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", place(at), what));
  }

  Status no_utf8(size_t at, std::string_view text) const {
    // The first line with invalid UTF-8; a line end is never inside a character.
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      if (!is_utf8(text.substr(begin, end - begin))) {
        return wrong(at + begin, "no valid UTF-8; is the file in another encoding? Convert it (iconv -t UTF-8)");
      }
      begin = end + 1;
    }
    return wrong(at, "no valid UTF-8");
  }

  // The line at the beginning of the window, without its end; std::nullopt at the end of the piece.
  StatusOr<std::optional<std::string_view>> take_line() {
    drop_used();
    if (piece.range && offset >= piece.range->end) {
      return std::nullopt;
    }
    while (true) {
      const std::string_view window = buffer.view();
      const size_t end = window.find('\n', searched);
      if (end != std::string_view::npos || (file_ended && !window.empty())) {
        searched = 0;
        used = end != std::string_view::npos ? end + 1 : window.size();
        return window.substr(0, std::min(end, window.size()));
      }
      if (file_ended) {
        return std::nullopt;
      }
      searched = window.size();
      KEEPSTEP_RETURN_IF_ERROR(more());
    }
  }

  StatusOr<std::string_view> text_of(std::string_view json, size_t at) {
    simdjson::dom::element value;
    if (const auto error = parser.parse(json.data(), json.size(), false).get(value); error != simdjson::SUCCESS) {
      if (error == simdjson::UTF8_ERROR) {
        return no_utf8(at, json);
      }
      return wrong(at, absl::StrFormat("broken JSON (%s)", simdjson::error_message(error)));
    }
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) {
      return wrong(at, "this JSON is no object; documents are objects with a field of text");
    }
    std::string_view text;
    if (const auto error = object[field].get(text); error == simdjson::NO_SUCH_FIELD) {
      std::string fields;
      for (const auto& pair : object) {
        fields += (fields.empty() ? "" : ", ") + std::string(pair.key.substr(0, 40));
        if (fields.size() > 200) {
          fields += ", ...";
          break;
        }
      }
      return wrong(at, absl::StrFormat("no field '%s'; it has %s. Choose with --field", field,
                                       fields.empty() ? "none" : fields));
    } else if (error != simdjson::SUCCESS) {
      return wrong(at, absl::StrFormat("field '%s' is no string", field));
    }
    return text;
  }

  StatusOr<std::optional<std::string_view>> next_json_line() {
    while (true) {
      KEEPSTEP_ASSIGN_OR_RETURN(const auto found, take_line());
      if (!found) {
        return std::nullopt;
      }
      if (!is_blank(*found)) {
        return text_of(*found, 0);
      }
    }
  }

  StatusOr<std::optional<std::string_view>> next_json() {
    drop_used();
    while (true) {
      const std::string_view window = buffer.view();
      const JsonSplitter::Found found = splitter.next(window);
      if (found.what == JsonSplitter::Found::kValue) {
        used = found.end;
        return text_of(window.substr(found.begin, found.end - found.begin), found.begin);
      }
      if (found.what == JsonSplitter::Found::kBroken) {
        return absl::DataLossError(
            absl::StrFormat("%s: broken JSON (a '%c' that belongs to nothing); the rest of the file cannot be read",
                            place(found.begin), window[found.begin]));
      }
      used = found.begin;
      if (file_ended) {
        drop_used();
        if (const std::string_view rest = buffer.view(); !rest.empty()) {  // a value without its end
          used = rest.size();
          return text_of(rest, 0);
        }
        if (!splitter.complete()) {
          return absl::DataLossError(absl::StrFormat("%s: the file ends inside its array; is it truncated?", place(0)));
        }
        return std::nullopt;
      }
      drop_used();
      KEEPSTEP_RETURN_IF_ERROR(more());
    }
  }

  StatusOr<std::optional<std::string_view>> next_text_line() {
    KEEPSTEP_ASSIGN_OR_RETURN(const auto found, take_line());
    if (found && !is_utf8(*found)) {
      return no_utf8(0, *found);
    }
    return found && found->ends_with('\r') ? found->substr(0, found->size() - 1) : found;
  }

  StatusOr<std::optional<std::string_view>> whole_text() {
    if (std::exchange(text_returned, true)) {
      return std::nullopt;
    }
    while (!file_ended) {
      KEEPSTEP_RETURN_IF_ERROR(more());
    }
    const std::string_view text = buffer.view();
    if (!is_utf8(text)) {
      return no_utf8(0, text);
    }
    return text;
  }
};

DocumentReader::DocumentReader(std::unique_ptr<Parts> parts, bool skip) : parts_(std::move(parts)), skip_(skip) {}
DocumentReader::DocumentReader(DocumentReader&&) noexcept = default;
DocumentReader& DocumentReader::operator=(DocumentReader&&) noexcept = default;
DocumentReader::~DocumentReader() = default;

StatusOr<DocumentReader> DocumentReader::open(const Piece& piece, std::string field, bool skip) {
  const bool lines = piece.format == Format::kJsonLines || piece.format == Format::kTextLines;
  if (piece.range && (piece.compression != Compression::kNone || !lines)) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s': only plain files of lines have ranges", piece.path));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(auto source, ByteSource::open(piece.path, piece.compression, first_byte(piece)));
  std::unique_ptr<Parts> parts(
      new Parts{piece, std::move(field), SlidingBuffer(std::move(source), piece.path, kMaxDocument)});
  DocumentReader reader(std::move(parts), skip);
  Parts& its = *reader.parts_;
  its.offset = first_byte(piece);
  if (piece.range && piece.range->begin > 0) {
    bool in_a_line = true;
    while (in_a_line && !its.file_ended) {
      KEEPSTEP_RETURN_IF_ERROR(its.more());
      const size_t end = its.buffer.view().find('\n');
      in_a_line = end == std::string_view::npos;
      its.used = in_a_line ? its.buffer.view().size() : end + 1;
      its.drop_used();
    }
  } else {
    Status first = its.more();
    if (!first.ok() && !(skip && absl::IsDataLoss(first))) {
      return first;
    }
    if (!first.ok()) {
      ++reader.counts_.unreadable;
      reader.complaints_.emplace_back(first.message());
      reader.ended_ = true;
    } else if (its.buffer.view().starts_with(kByteOrderMark)) {
      its.used = kByteOrderMark.size();
      its.drop_used();
    }
  }
  return reader;
}

uint64_t DocumentReader::position() const { return parts_->buffer.position(); }

StatusOr<std::optional<std::string_view>> DocumentReader::read() {
  switch (parts_->piece.format) {
    case Format::kJsonLines:
      return parts_->next_json_line();
    case Format::kJson:
      return parts_->next_json();
    case Format::kTextLines:
      return parts_->next_text_line();
    case Format::kText:
      break;
  }
  return parts_->whole_text();
}

StatusOr<std::optional<std::string_view>> DocumentReader::next() {
  while (!ended_) {
    auto found = read();
    if (!found.ok()) {
      const absl::StatusCode code = found.status().code();
      // The end of a document that is too large was never seen; after damaged data nothing can be read.
      const bool rest_is_lost = code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kOutOfRange;
      if (!skip_ || (code != absl::StatusCode::kInvalidArgument && !rest_is_lost)) {
        return found.status();
      }
      ended_ = rest_is_lost;
      ++counts_.unreadable;
      if (complaints_.size() < kMaxComplaints) {
        complaints_.emplace_back(found.status().message());
      }
    } else if (!*found) {
      ended_ = true;
    } else if ((*found)->empty()) {
      ++counts_.empty;
    } else {
      ++counts_.documents;
      counts_.text_bytes += (*found)->size();
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace keepstep::data
