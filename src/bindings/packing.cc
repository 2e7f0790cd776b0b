// Binds packed corpora (src/data/corpus/packed_corpus.h). Tensors are passed as addresses, as in data.cc.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert.h"
#include "data/corpus/packed_corpus.h"
#include "data/corpus/read_ahead.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using data::PackedCorpus;
using Address = uintptr_t;

StatusOr<data::TooLong> too_long(const std::string& name) {
  if (name == "cut") {
    return data::TooLong::kCut;
  }
  if (name == "truncate") {
    return data::TooLong::kTruncate;
  }
  if (name == "drop") {
    return data::TooLong::kDrop;
  }
  return absl::InvalidArgumentError("too_long='" + name + "'; cut, truncate or drop is needed");
}

void require_rows(const PackedCorpus& packed, const std::vector<int64_t>& rows) {
  for (const int64_t row : rows) {
    if (row < 0 || static_cast<uint64_t>(row) >= packed.header().rows) {
      throw nb::index_error(
          absl::StrFormat("sample %d of '%s', which has %d", row, packed.path(), packed.header().rows).c_str());
    }
  }
}

}  // namespace

void bind_packing(nb::module_& module) {
  nb::class_<PackedCorpus>(module, "PackedCorpus",
                           "Documents in rows of fixed length (src/data/corpus/packed_corpus.h).")
      .def(
          "__init__",
          [](PackedCorpus* self, const std::string& prefix, uint64_t capacity, const std::string& rule,
             std::pair<uint64_t, uint64_t> documents, const std::string& plan_folder) {
            const data::TooLong parsed = value_or_throw(too_long(rule));
            nb::gil_scoped_release release;
            StatusOr<PackedCorpus> opened =
                PackedCorpus::open(prefix, capacity, parsed, {documents.first, documents.second}, plan_folder);
            nb::gil_scoped_acquire acquire;
            new (self) PackedCorpus(value_or_throw(std::move(opened)));
          },
          "prefix"_a, "capacity"_a, "too_long"_a, "documents"_a, "plan_folder"_a = "")
      .def_prop_ro("rows", [](const PackedCorpus& self) { return self.header().rows; })
      .def_prop_ro("tokens", [](const PackedCorpus& self) { return self.header().tokens; })
      .def_prop_ro("cut", [](const PackedCorpus& self) { return self.header().cut; })
      .def_prop_ro("skipped", [](const PackedCorpus& self) { return self.header().skipped; })
      .def_prop_ro("path", &PackedCorpus::path)
      .def_prop_ro("has_loss_mask", &PackedCorpus::has_loss_mask)
      .def(
          "read",
          [](const PackedCorpus& self, const std::vector<int64_t>& rows, int64_t padding, Address tokens,
             Address documents, Address positions, Address trained, const std::optional<std::vector<uint64_t>>& into) {
            require_rows(self, rows);
            if (into.has_value() && into->size() != rows.size()) {
              throw nb::value_error("as many places as rows are needed");
            }
            Status read = absl::OkStatus();
            {
              nb::gil_scoped_release release;
              for (size_t i = 0; read.ok() && i < rows.size(); ++i) {
                const uint64_t at = (into.has_value() ? (*into)[i] : i) * self.header().capacity;
                read = self.read(static_cast<uint64_t>(rows[i]), padding,
                                 {.tokens = reinterpret_cast<int64_t*>(tokens) + at,
                                  .documents = reinterpret_cast<int64_t*>(documents) + at,
                                  .positions = reinterpret_cast<int64_t*>(positions) + at,
                                  .trained = reinterpret_cast<uint8_t*>(trained) + at});
              }
            }
            throw_if_error(read);
          },
          "rows"_a, "padding"_a, "tokens"_a, "documents"_a, "positions"_a, "trained"_a, "into"_a = nb::none(),
          "Rows of `capacity` numbers each: int64, and bool for `trained`; into rows 0, 1, ... or `into`.")
      .def(
          "will_need",
          [](const PackedCorpus& self, const std::vector<int64_t>& rows) {
            require_rows(self, rows);
            if (data::ReadAhead::of_process().rests()) {
              return;
            }
            std::vector<data::FilePiece> pieces;
            for (const int64_t row : rows) {
              throw_if_error(self.places(static_cast<uint64_t>(row), pieces));
            }
            data::ReadAhead::of_process().ask(std::move(pieces));
          },
          "rows"_a);
}

}  // namespace keepstep::rank
