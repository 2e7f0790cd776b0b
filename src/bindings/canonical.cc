// Binds comm/collectives/canonical_sum.h: leaves as addresses and element counts. The caller must keep them alive.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert.h"
#include "comm/collectives/canonical_sum.h"
#include "comm/numbers/sum_of_squares.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using comm::CanonicalSum;
using comm::DataType;
using Address = uintptr_t;

const void* pointer(Address address) { return reinterpret_cast<const void*>(address); }

void require(const std::string& why) {
  if (!why.empty()) {
    throw nb::value_error(why.c_str());
  }
}

}  // namespace

void bind_canonical(nb::module_& module) {
  nb::class_<CanonicalSum>(module, "CanonicalSum",
                           "Leaves added in the canonical order (src/comm/collectives/canonical_sum.h).")
      .def(
          "__init__",
          [](CanonicalSum* self, size_t count, int dtype) {
            require(comm::why_no_sum(DataType(dtype)));
            new (self) CanonicalSum(count, DataType(dtype));
          },
          "count"_a, "dtype"_a)
      .def(
          "begin",
          [](CanonicalSum& self, uint32_t leaves, uint32_t begin, uint32_t end) {
            throw_if_error(self.begin({leaves, begin, end}));
          },
          "leaves"_a, "begin"_a, "end"_a)
      .def(
          "add",
          [](CanonicalSum& self, size_t offset, Address values, size_t count) {
            Status status;
            {
              nb::gil_scoped_release release;
              status = self.add(offset, pointer(values), count);
            }
            throw_if_error(status);
          },
          "offset"_a, "values"_a, "count"_a, "Elements of the current leaf; values 0: zeros.")
      .def_prop_ro("count", &CanonicalSum::count)
      .def_prop_ro("bytes", &CanonicalSum::bytes)
      .def_prop_ro("next_leaf", &CanonicalSum::next_leaf)
      .def_prop_ro("complete", &CanonicalSum::complete)
      .def(
          "write",
          [](const CanonicalSum& self, Address destination, uint64_t divisor) {
            throw_if_error(self.write(reinterpret_cast<void*>(destination), divisor));
          },
          "destination"_a, "divisor"_a)
      .def("partials", [](const CanonicalSum& self) {
        if (!self.complete()) {
          throw nb::value_error("a canonical sum has no partial sums before all its leaves were added");
        }
        std::vector<Address> result;
        for (const void* partial : self.partials()) {
          result.push_back(reinterpret_cast<Address>(partial));
        }
        return result;
      });
  module.def(
      "even_run",
      [](uint32_t leaves, size_t member, size_t members) {
        if (members == 0 || member >= members) {
          throw nb::value_error("a run is one member's: 0 <= member < members");
        }
        const comm::LeafRun run = comm::even_run(leaves, member, members);
        return std::pair(run.begin, run.end);
      },
      "leaves"_a, "member"_a, "members"_a, "[begin, end) of `leaves` shared evenly.");
  module.def(
      "sum_of_squares",
      [](Address values, size_t count, int dtype) {
        require(comm::why_no_sum(DataType(dtype)));
        nb::gil_scoped_release release;
        return comm::sum_of_squares(pointer(values), count, DataType(dtype));
      },
      "values"_a, "count"_a, "dtype"_a, "In float64, in a fixed order.");
}

}  // namespace keepstep::rank
