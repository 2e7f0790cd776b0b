// Binds src/data: corpora of tokens, and blends. Tensors are passed as addresses; the caller must keep them alive.
// Calls that read or write files release the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bindings/convert.h"
#include "data/corpus/read_ahead.h"
#include "data/corpus/token_corpus.h"
#include "data/corpus/token_writer.h"
#include "data/order/blend.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using data::Blend;
using data::TokenCorpus;
using data::TokenWriter;
using Address = uintptr_t;

int64_t* numbers(Address address) { return reinterpret_cast<int64_t*>(address); }

// Samples are at equal distances in the stream: sample s is at first + s * stride, for s < most.
struct Samples {
  const std::vector<int64_t>& numbers;
  uint64_t first;
  uint64_t stride;
  uint64_t most;

  uint64_t begin(size_t i) const { return first + static_cast<uint64_t>(numbers[i]) * stride; }
};

void require_inside(const TokenCorpus& corpus, const Samples& samples, uint64_t count) {
  const uint64_t tokens = corpus.index().tokens();
  for (size_t i = 0; i < samples.numbers.size(); ++i) {
    const int64_t number = samples.numbers[i];
    if (number < 0 || static_cast<uint64_t>(number) >= samples.most) {
      throw nb::index_error(
          absl::StrFormat("sample %d of '%s', which has %d", number, corpus.prefix(), samples.most).c_str());
    }
    if (samples.begin(i) > tokens || count > tokens - samples.begin(i)) {
      throw nb::index_error(absl::StrFormat("tokens %d to %d of '%s', which has %d", samples.begin(i),
                                            samples.begin(i) + count, corpus.prefix(), tokens)
                                .c_str());
    }
  }
}

// Calls read(first token, row) for each sample; row i is that of sample i, or rows[i] if given.
template <typename Read>
void each_row(const TokenCorpus& corpus, const Samples& samples, uint64_t count,
              const std::optional<std::vector<uint64_t>>& rows, Read read) {
  require_inside(corpus, samples, count);
  if (rows.has_value() && rows->size() != samples.numbers.size()) {
    throw nb::value_error("as many rows as samples are needed");
  }
  throw_if_error(without_gil([&]() -> Status {
    for (size_t i = 0; i < samples.numbers.size(); ++i) {
      KEEPSTEP_RETURN_IF_ERROR(read(samples.begin(i), rows.has_value() ? (*rows)[i] : i));
    }
    return absl::OkStatus();
  }));
}

constexpr uint64_t kAny = std::numeric_limits<int64_t>::max();

void bind_corpus(nb::module_& module) {
  nb::class_<TokenCorpus>(module, "TokenCorpus", "PREFIX.bin and PREFIX.idx, mapped (src/data/corpus/token_corpus.h).")
      .def(
          "__init__",
          [](TokenCorpus* self, const std::string& prefix) {
            new (self) TokenCorpus(value_or_throw(without_gil([&] { return TokenCorpus::open(prefix); })));
          },
          "prefix"_a)
      .def_prop_ro("prefix", &TokenCorpus::prefix)
      .def_prop_ro("type", [](const TokenCorpus& self) { return data::name_of(self.index().type()); })
      .def_prop_ro("bytes", &TokenCorpus::bytes)
      .def_prop_ro("tokens", [](const TokenCorpus& self) { return self.index().tokens(); })
      .def_prop_ro("sequences", [](const TokenCorpus& self) { return self.index().sequences(); })
      .def_prop_ro("documents", [](const TokenCorpus& self) { return self.index().documents(); })
      .def(
          "document_start",
          [](const TokenCorpus& self, uint64_t document) {
            const data::TokenIndex& index = self.index();
            if (document > index.documents()) {
              throw nb::index_error("a document out of range");
            }
            return document == index.documents() ? index.tokens() : index.start_of(index.sequences_of(document).begin);
          },
          "document"_a, "Its first token in the stream; for `documents` the number of all tokens.")
      .def(
          "read",
          [](const TokenCorpus& self, const std::vector<int64_t>& samples, uint64_t count, Address out, uint64_t first,
             uint64_t stride, uint64_t most, const std::optional<std::vector<uint64_t>>& rows, bool widen) {
            const size_t row_bytes = count * (widen ? sizeof(int64_t) : data::size_of(self.index().type()));
            each_row(self, {samples, first, stride, most}, count, rows, [&](uint64_t begin, uint64_t row) {
              std::byte* to = reinterpret_cast<std::byte*>(out) + row * row_bytes;
              return widen ? self.read(begin, count, reinterpret_cast<int64_t*>(to)) : self.copy(begin, count, to);
            });
          },
          "samples"_a, "count"_a, "out"_a, "first"_a = 0, "stride"_a = 1, "most"_a = kAny, "rows"_a = nb::none(),
          "widen"_a = true,
          "A row of `count` tokens for each sample, which begins at token first + sample * stride: as int64, or "
          "(widen=False) as they lie in the file. Into rows 0, 1, ... of `out`, or `rows`.")
      .def(
          "describe",
          [](const TokenCorpus& self, const std::vector<int64_t>& samples, uint64_t count, Address sequence,
             Address position, uint64_t first, uint64_t stride, uint64_t most,
             const std::optional<std::vector<uint64_t>>& rows) {
            each_row(self, {samples, first, stride, most}, count, rows, [&](uint64_t begin, uint64_t row) {
              return self.describe(begin, count, numbers(sequence) + row * count, numbers(position) + row * count);
            });
          },
          "samples"_a, "count"_a, "sequence"_a, "position"_a, "first"_a = 0, "stride"_a = 1, "most"_a = kAny,
          "rows"_a = nb::none(), "Two rows of `count` int64 for each sample.")
      .def(
          "will_need",
          [](const TokenCorpus& self, const std::vector<int64_t>& samples, uint64_t count, uint64_t first,
             uint64_t stride, uint64_t most) {
            if (data::ReadAhead::of_process().rests()) {
              return;
            }
            std::vector<data::FilePiece> pieces;
            pieces.reserve(samples.size());
            each_row(self, {samples, first, stride, most}, count, std::nullopt,
                     [&](uint64_t begin, uint64_t) { return self.places(begin, count, pieces); });
            data::ReadAhead::of_process().ask(std::move(pieces));
          },
          "samples"_a, "count"_a, "first"_a = 0, "stride"_a = 1, "most"_a = kAny,
          "Has them read by this process's read-ahead thread (src/data/corpus/read_ahead.h).");
}

void bind_writer(nb::module_& module) {
  nb::class_<TokenWriter>(module, "TokenWriter",
                          "Writes a corpus, all of it or nothing (src/data/corpus/token_writer.h).")
      .def_static(
          "create",
          [](const std::string& prefix, const std::string& type, bool overwrite) {
            return value_or_throw(TokenWriter::create(prefix, value_or_throw(data::token_type(type)), overwrite));
          },
          "prefix"_a, "type"_a, "overwrite"_a = false)
      .def_static(
          "join",
          [](const std::string& prefix, const std::string& joined, const std::string& type) {
            return value_or_throw(TokenWriter::join(prefix, joined, value_or_throw(data::token_type(type))));
          },
          "prefix"_a, "joined"_a, "type"_a, "Of parts, which may go once they are in: `joined` stays until `finish`.")
      .def(
          "add",
          [](TokenWriter& self, const std::vector<int64_t>& tokens) {
            throw_if_error(without_gil([&] { return self.add(tokens); }));
          },
          "tokens"_a, "A sequence.")
      .def(
          "add_bytes",
          [](TokenWriter& self, nb::bytes text, int64_t end) {
            const std::string_view view(text.c_str(), text.size());
            throw_if_error(without_gil([&] { return self.add_bytes(view, end); }));
          },
          "text"_a, "end"_a = -1, "A sequence of bytes, and a last token unless that is negative.")
      .def(
          "append",
          [](TokenWriter& self, const std::string& prefix) {
            return value_or_throw(without_gil([&] { return self.append(prefix); }));
          },
          "prefix"_a, "All of another corpus; returns the checksum of its tokens.")
      .def(
          "take_over",
          [](TokenWriter& self, const std::string& prefix, uint64_t bytes) {
            return value_or_throw(without_gil([&] { return self.take_over(prefix, bytes); }));
          },
          "prefix"_a, "bytes"_a,
          "All of another corpus that an earlier writer appended here; returns the checksum of its tokens.")
      .def(
          "sync", [](TokenWriter& self) { throw_if_error(without_gil([&] { return self.sync(); })); },
          "All that was added is on the disk.")
      .def("end_document", &TokenWriter::end_document)
      .def(
          "finish",
          [](TokenWriter& self, bool durable) { throw_if_error(without_gil([&] { return self.finish(durable); })); },
          "durable"_a = true)
      .def("discard", &TokenWriter::discard, "Gives up: removes what it wrote.")
      .def_prop_ro("tokens", &TokenWriter::tokens)
      .def_prop_ro("sequences", &TokenWriter::sequences)
      .def_prop_ro("documents", &TokenWriter::documents)
      .def_prop_ro("checksum", &TokenWriter::checksum, "XXH3 of the .bin file; after `finish`.");
}

void bind_blend(nb::module_& module) {
  nb::class_<Blend>(module, "Blend", "Sources in fixed shares (src/data/order/blend.h).")
      .def(
          "__init__",
          [](Blend* self, const std::vector<uint64_t>& counts) {
            new (self) Blend(value_or_throw(Blend::make(counts)));
          },
          "counts"_a)
      .def_prop_ro("period", &Blend::period)
      .def(
          "at",
          [](const Blend& self, uint64_t position) {
            const Blend::Sample sample = self.at(position);
            return std::pair(sample.source, sample.number);
          },
          "position"_a, "(source, number of its own).")
      .def(
          "run",
          [](const Blend& self, uint64_t position, uint64_t count) {
            std::vector<uint32_t> sources(count);
            std::vector<uint64_t> own(count);
            for (uint64_t i = 0; i < count; ++i) {
              const Blend::Sample sample = self.at(position + i);
              sources[i] = sample.source;
              own[i] = sample.number;
            }
            return std::pair(std::move(sources), std::move(own));
          },
          "position"_a, "count"_a, "The sources of `count` samples, and their numbers of their own.")
      .def_ro_static("MAX_PERIOD", &Blend::kMaxPeriod);
  module.def(
      "blend_counts",
      [](const std::vector<double>& weights, uint64_t period) {
        return value_or_throw(data::counts_of(weights, period));
      },
      "weights"_a, "period"_a, "Whole numbers in the proportion of `weights` that add up to `period`.");
}

void bind_read_ahead(nb::module_& module) {
  module.def("page_faults", &data::page_faults_waited_for,
             "How often this thread waited for a page to come from a disk, since it began.");
  module.def(
      "read_ahead_done",
      [] {
        data::ReadAhead& ahead = data::ReadAhead::of_process();
        without_gil([&] { ahead.wait(); });
        const data::ReadAhead::Counters counters = ahead.counters();
        return std::tuple(counters.bytes, counters.read, counters.dropped, counters.rested);
      },
      "Waits until the read-ahead thread has done all that was asked for: (bytes, requests for which something was "
      "read, "
      "that were dropped, that were not looked at) since the process began.");
  module.def("read_ahead_wake", [] { data::ReadAhead::of_process().wake(); }, "A reader had to wait for the disk.");
}

}  // namespace

void bind_data(nb::module_& module) {
  bind_corpus(module);
  bind_writer(module);
  bind_blend(module);
  bind_read_ahead(module);
}

}  // namespace keepstep::rank
