// Binds TensorWatch. It does a commit's checks of all protected tensors in one call: as Python code, cold after the
// step's computation, they took longer than the vote.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "bindings/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using Address = uintptr_t;

// Converts a non-negative Python integer; takes over the reference. nullptr: throws the Python error that is set.
uint64_t number_of(PyObject* owned) {
  const nb::object value = nb::steal(owned);
  const uint64_t number = value.is_valid() ? PyLong_AsUnsignedLongLong(value.ptr()) : 0;
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return number;
}

// The versions (torch's count of writes to a tensor), addresses, and some bytes of a fixed list of tensors at the last
// `take`. Holds references. The GIL must be held.
class TensorWatch {
 public:
  TensorWatch(std::vector<nb::object> tensors, std::vector<nb::object> placed)
      : tensors_(std::move(tensors)),
        placed_(std::move(placed)),
        version_(nb::steal(PyUnicode_InternFromString("_version"))),
        data_ptr_(nb::steal(PyUnicode_InternFromString("data_ptr"))) {}

  // Records the current places of `placed`; `parts` (address, bytes) are read as long as the tensors stay there.
  void settle(std::vector<std::pair<Address, size_t>> parts) {
    places_.clear();
    for (const nb::object& tensor : placed_) {
      places_.push_back(place(tensor));
    }
    parts_ = std::move(parts);
  }

  bool in_place() const {
    for (size_t i = 0; i < placed_.size(); ++i) {
      if (place(placed_[i]) != places_[i]) {
        return false;
      }
    }
    return true;
  }

  // False, taking nothing, if not all are in place.
  bool take() {
    if (!in_place()) {
      return false;
    }
    versions_.clear();
    for (const nb::object& tensor : tensors_) {
      versions_.push_back(version(tensor));
    }
    bytes_.clear();
    for (const auto& [address, bytes] : parts_) {
      const auto* begin = reinterpret_cast<const std::byte*>(address);
      bytes_.insert(bytes_.end(), begin, begin + bytes);
    }
    return true;
  }

  // Whether all are in place and hold the bytes that were taken; `written`: and torch has not written to any of them.
  bool same(bool written) const {
    if (versions_.size() != tensors_.size() || !in_place()) {
      return false;
    }
    for (size_t i = 0; written && i < tensors_.size(); ++i) {
      if (version(tensors_[i]) != versions_[i]) {
        return false;
      }
    }
    size_t at = 0;
    for (const auto& [address, bytes] : parts_) {
      if (at + bytes > bytes_.size() ||
          std::memcmp(reinterpret_cast<const std::byte*>(address), bytes_.data() + at, bytes) != 0) {
        return false;
      }
      at += bytes;
    }
    return at == bytes_.size();
  }

  const std::vector<uint64_t>& versions() const { return versions_; }
  nb::bytes bytes() const { return nb::bytes(bytes_.data(), bytes_.size()); }

 private:
  uint64_t version(const nb::object& tensor) const { return number_of(PyObject_GetAttr(tensor.ptr(), version_.ptr())); }

  Address place(const nb::object& tensor) const {
    PyObject* self = tensor.ptr();  // like PyObject_CallMethodNoArgs, which the stable ABI lacks
    return number_of(PyObject_VectorcallMethod(data_ptr_.ptr(), &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  }

  std::vector<nb::object> tensors_;
  std::vector<nb::object> placed_;
  nb::object version_;
  nb::object data_ptr_;
  std::vector<Address> places_;                    // of `placed_`
  std::vector<std::pair<Address, size_t>> parts_;  // memory that is read
  std::vector<uint64_t> versions_;                 // taken
  std::vector<std::byte> bytes_;                   // taken
};

}  // namespace

void bind_watch(nb::module_& module) {
  nb::class_<TensorWatch>(module, "TensorWatch", "Tensors, and how they were at one moment.")
      .def(nb::init<std::vector<nb::object>, std::vector<nb::object>>(), "tensors"_a, "placed"_a)
      .def("settle", &TensorWatch::settle, "parts"_a)
      .def("in_place", &TensorWatch::in_place)
      .def("take", &TensorWatch::take)
      .def("same", &TensorWatch::same, "written"_a)
      .def_prop_ro("versions", &TensorWatch::versions)
      .def_prop_ro("bytes", &TensorWatch::bytes);
}

}  // namespace keepstep::rank
