// Binds src/data/build and functions over whole corpora, for `keepstep data`. Calls that read or write files release
// the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "bindings/convert.h"
#include "data/build/document_reader.h"
#include "data/corpus/token_corpus.h"
#include "data/corpus/token_scan.h"
#include "data/corpus/token_writer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using data::DocumentReader;
using data::TokenCorpus;
using data::TokenScan;
using data::TokenWriter;
using Address = uintptr_t;

std::unique_ptr<DocumentReader> open_reader(const std::string& path, const std::string& format,
                                            const std::string& compression,
                                            std::optional<std::pair<uint64_t, uint64_t>> range,
                                            const std::string& field, bool skip) {
  data::Piece piece;
  piece.path = path;
  piece.format = value_or_throw(data::format_of(format));
  piece.compression = value_or_throw(data::compression_of(compression));
  if (range) {
    piece.range = data::Range{range->first, range->second};
  }
  return std::make_unique<DocumentReader>(
      value_or_throw(without_gil([&] { return DocumentReader::open(piece, field, skip); })));
}

// Uses documents until their texts add up to `most` bytes; false at the end of the piece.
template <typename Use>
StatusOr<bool> until(DocumentReader& reader, uint64_t most, Use use) {
  const uint64_t before = reader.counts().text_bytes;
  while (reader.counts().text_bytes - before < most) {
    KEEPSTEP_ASSIGN_OR_RETURN(const auto text, reader.next());
    if (!text) {
      return false;
    }
    KEEPSTEP_RETURN_IF_ERROR(use(*text));
  }
  return true;
}

bool copy_to(DocumentReader& reader, TokenWriter& writer, int64_t end, uint64_t most) {
  return value_or_throw(without_gil([&] {
    return until(reader, most, [&](std::string_view text) {
      KEEPSTEP_RETURN_IF_ERROR(writer.add_bytes(text, end));
      writer.end_document();
      return absl::OkStatus();
    });
  }));
}

nb::list take(DocumentReader& reader, uint64_t most) {
  std::vector<std::string> texts;
  value_or_throw(without_gil([&] {
    return until(reader, most, [&](std::string_view text) {
      texts.emplace_back(text);
      return absl::OkStatus();
    });
  }));
  nb::list list;
  for (const std::string& text : texts) {
    list.append(nb::str(text.data(), text.size()));
  }
  return list;
}

void add_documents(TokenWriter& writer, const std::vector<std::vector<int64_t>>& documents) {
  throw_if_error(without_gil([&]() -> Status {
    for (const auto& document : documents) {
      KEEPSTEP_RETURN_IF_ERROR(writer.add(document));
      writer.end_document();
    }
    return absl::OkStatus();
  }));
}

// Texts in Arrow's layout: `count` + 1 offsets into `bytes` bytes of data. Returns the numbers of documents, bytes, and
// empty documents.
std::tuple<uint64_t, uint64_t, uint64_t> add_strings(TokenWriter& writer, Address offsets, uint64_t count, Address data,
                                                     uint64_t bytes, int64_t end) {
  const auto* places = reinterpret_cast<const int64_t*>(offsets);
  const std::string_view all(reinterpret_cast<const char*>(data), bytes);
  uint64_t empty = 0;
  throw_if_error(without_gil([&]() -> Status {
    for (uint64_t i = 0; i < count; ++i) {
      if (places[i] < 0 || places[i + 1] < places[i] || static_cast<uint64_t>(places[i + 1]) > bytes) {
        return absl::InvalidArgumentError(absl::StrFormat("text %d lies outside its %d bytes", i, bytes));
      }
      if (places[i] == places[i + 1]) {
        ++empty;
        continue;
      }
      KEEPSTEP_RETURN_IF_ERROR(writer.add_bytes(all.substr(places[i], places[i + 1] - places[i]), end));
      writer.end_document();
    }
    return absl::OkStatus();
  }));
  return {count - empty, static_cast<uint64_t>(count == 0 ? 0 : places[count] - places[0]), empty};
}

// Shortest, longest, and number of empty ones.
std::tuple<uint64_t, uint64_t, uint64_t> sequence_lengths(const TokenCorpus& corpus) {
  const data::TokenIndex& index = corpus.index();
  uint64_t shortest = index.sequences() == 0 ? 0 : std::numeric_limits<uint64_t>::max();
  uint64_t longest = 0;
  uint64_t empty = 0;
  for (uint64_t i = 0; i < index.sequences(); ++i) {
    const uint64_t length = index.place(i).size();
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    empty += length == 0 ? 1 : 0;
  }
  return {shortest, longest, empty};
}

}  // namespace

void bind_corpus_build(nb::module_& module) {
  nb::class_<DocumentReader>(module, "DocumentReader", "The texts of an input file (src/data/build/document_reader.h).")
      .def_static("open", &open_reader, "path"_a, "format"_a, "compression"_a, "range"_a.none(), "field"_a, "skip"_a)
      .def("copy_to", &copy_to, "writer"_a, "end"_a, "most"_a,
           "Documents of about `most` bytes of text to `writer` as bytes, each ended by the token `end` unless that is "
           "negative; False at the end.")
      .def("take", &take, "most"_a, "The texts that have about `most` bytes together; none at the end.")
      .def_prop_ro("position", &DocumentReader::position, "How far the file itself was read, in bytes.")
      .def_prop_ro("documents", [](const DocumentReader& self) { return self.counts().documents; })
      .def_prop_ro("text_bytes", [](const DocumentReader& self) { return self.counts().text_bytes; })
      .def_prop_ro("empty", [](const DocumentReader& self) { return self.counts().empty; })
      .def_prop_ro("unreadable", [](const DocumentReader& self) { return self.counts().unreadable; })
      .def_prop_ro("complaints", &DocumentReader::complaints);
  module.def("add_documents", &add_documents, "writer"_a, "documents"_a, "Each list of tokens is a document.");

  module.def("add_strings", &add_strings, "writer"_a, "offsets"_a, "count"_a, "data"_a, "bytes"_a, "end"_a,
             "Texts as Arrow's large_string has them, each a document; returns documents, bytes of text, empty ones.");

  nb::class_<TokenScan>(module, "TokenScan", "Goes once through a .bin file (src/data/corpus/token_scan.h).")
      .def(nb::init<const TokenCorpus&>(), "corpus"_a, nb::keep_alive<1, 2>())
      .def(
          "step",
          [](TokenScan& self, uint64_t bytes) { return value_or_throw(without_gil([&] { return self.step(bytes); })); },
          "bytes"_a, "Reads about as many bytes more; False where all was read.")
      .def_prop_ro("position", &TokenScan::position)
      .def_prop_ro("checksum", &TokenScan::checksum)
      .def_prop_ro("least", &TokenScan::least)
      .def_prop_ro("greatest", &TokenScan::greatest);
  module.def("sequence_lengths", &sequence_lengths, "corpus"_a, "Shortest, longest, how many are empty.");
  module.def(
      "token_bytes", [](const std::string& type) { return data::size_of(value_or_throw(data::token_type(type))); },
      "type"_a);
  module.def(
      "narrowest_type", [](uint64_t vocabulary) { return data::name_of(data::narrowest_type(vocabulary)); },
      "vocabulary"_a, "The type in which tokens of such a vocabulary are written.");
}

}  // namespace keepstep::rank
