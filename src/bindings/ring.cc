// Binds rank/link/ring_link.h and data/ring/ring.h. Every call that may wait releases the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/convert.h"
#include "data/ring/ring_extent.h"
#include "rank/link/ring_link.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using data::ItemKind;
using data::RingItem;
using data::RingPiece;
using data::RingReader;
using data::RingView;
using data::RingWriter;
using ItemFacts = std::tuple<uint32_t, uint64_t, uint64_t>;  // kind, epoch, index in the epoch

ItemFacts facts(const RingItem& item) { return {static_cast<uint32_t>(item.kind), item.epoch, item.index}; }

// A rank's place in a ring: link and reader in one object.
class Ring {
 public:
  explicit Ring(std::unique_ptr<RingLink> link) : link_(std::move(link)) {}
  void open(const std::string& name, const data::RingSpec& spec, uint64_t position) {
    reader_.reset();
    reader_ = value_or_throw(without_gil([&] { return link_->open(name, spec, position); }));
  }
  void leave() {
    reader_.reset();  // first: its views get their own pages
    link_->leave();
  }
  RingReader& reader() const {
    if (reader_ == nullptr) {
      throw nb::value_error("this process has no place in the ring");
    }
    return *reader_;
  }
  RingLink& link() const { return *link_; }

 private:
  std::unique_ptr<RingLink> link_;
  std::unique_ptr<RingReader> reader_;
};

// torch.frombuffer and numpy.frombuffer hold a reference to the object they view.
int view_buffer(PyObject* object, Py_buffer* buffer, int flags) {
  static std::byte nothing{};
  const RingView* view = nb::inst_ptr<RingView>(object);
  void* data = view->size() == 0 ? &nothing : view->data();
  return PyBuffer_FillInfo(buffer, object, data, static_cast<Py_ssize_t>(view->size()), 0, flags);
}

PyType_Slot view_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(view_buffer)}, {0, nullptr}};

void bind_writer(nb::module_& module) {
  nb::class_<RingView>(module, "RingView",
                       "A batch as bytes: a private mapping of shared pages (src/data/ring/ring.h).",
                       nb::type_slots(view_slots))
      .def("__len__", &RingView::size);

  nb::class_<RingWriter>(module, "RingWriter", "The loader process's end of a ring (src/data/ring/ring.h).")
      .def_prop_ro("head", &RingWriter::head)
      .def_prop_ro("start", &RingWriter::start)
      .def(
          "last",
          [](const RingWriter& writer) {
            const std::optional<RingItem> item = writer.last();
            return item.has_value() ? std::optional(facts(*item)) : std::nullopt;
          },
          "(kind, epoch, index) of the newest item; None: there is none.")
      .def("last_state", [](const RingWriter& writer) { return to_bytes(value_or_throw(writer.last_state())); })
      .def(
          "put",
          [](RingWriter& writer, uint32_t kind, uint64_t epoch, uint64_t index, uint64_t batch_bytes,
             uint64_t state_bytes, const std::vector<std::tuple<uint64_t, uintptr_t, uint64_t>>& pieces) {
            std::vector<RingPiece> parts;
            parts.reserve(pieces.size());
            for (const auto& [offset, address, bytes] : pieces) {
              parts.push_back({offset, reinterpret_cast<const void*>(address), bytes});
            }
            const RingItem item{.epoch = epoch,
                                .index = index,
                                .kind = static_cast<ItemKind>(kind),
                                .batch_bytes = batch_bytes,
                                .state_bytes = state_bytes};
            throw_if_error(without_gil([&] { return writer.put(item, parts); }));
          },
          "kind"_a, "epoch"_a, "index"_a, "batch_bytes"_a, "state_bytes"_a, "pieces"_a,
          "Waits for room. pieces: (offset from the item's beginning, address, bytes); the state begins at the next "
          "multiple of 64 after the batch.");
}

void bind_reader(nb::module_& module) {
  nb::class_<Ring>(module, "Ring",
                   "A rank's place in a ring of batches (src/rank/link/ring_link.h, src/data/ring/ring.h).")
      .def_static(
          "connect",
          [](const std::string& path) {
            return new Ring(value_or_throw(without_gil([&] { return RingLink::connect(path); })));
          },
          "path"_a)
      .def(
          "open",
          [](Ring& ring, const std::string& name, uint32_t round, uint32_t ahead, uint32_t behind, uint64_t limit_bytes,
             uint64_t position) {
            ring.open(name, {.round = round, .ahead = ahead, .behind = behind, .limit_bytes = limit_bytes}, position);
          },
          "name"_a, "round"_a, "ahead"_a, "behind"_a, "limit_bytes"_a, "position"_a)
      .def("leave", &Ring::leave)
      .def_prop_ro(
          "joined", [](const Ring& ring) { return ring.reader().joined(); },
          "False once the agent has given this place away: what is read then may be written over.")
      .def(
          "detach", [](const Ring& ring) { without_gil([&] { ring.reader().detach(); }); },
          "Views that are held get memory of their own.")
      .def_prop_ro("position", [](const Ring& ring) { return ring.reader().position(); })
      .def_prop_ro("head", [](const Ring& ring) { return ring.reader().head(); })
      .def_prop_ro("loader", [](const Ring& ring) { return static_cast<uint32_t>(ring.reader().loader()); })
      .def_prop_ro(
          "newest",
          [](const Ring& ring) {
            const auto kind = ring.reader().newest();
            return kind.has_value() ? static_cast<int>(*kind) : -1;
          },
          "The kind of the last item that is published; -1: there is none.")
      .def_prop_ro("why", [](const Ring& ring) { return ring.reader().why(); })
      .def_prop_ro("incarnation", [](const Ring& ring) { return ring.reader().incarnation(); })
      .def_prop_ro("bell", [](const Ring& ring) { return ring.reader().bell(); })
      .def(
          "move_to",
          [](const Ring& ring, uint64_t position) {
            const Status status = without_gil([&] { return ring.reader().move_to(position); });
            if (absl::IsOutOfRange(status)) {
              throw nb::index_error(std::string(status.message()).c_str());
            }
            throw_if_error(status);
          },
          "position"_a, "IndexError: items are gone.")
      .def(
          "wait", [](const Ring& ring, uint32_t seen) { without_gil([&] { ring.reader().wait(seen); }); }, "seen"_a,
          "Sleeps until the bell rings; returns early at a signal.")
      .def(
          "item", [](const Ring& ring, uint64_t number) { return facts(value_or_throw(ring.reader().item(number))); },
          "number"_a, "(kind, epoch, index)")
      .def(
          "view", [](const Ring& ring, uint64_t number) { return value_or_throw(ring.reader().view(number)); },
          "number"_a)
      .def(
          "state",
          [](const Ring& ring, uint64_t number) { return to_bytes(value_or_throw(ring.reader().state(number))); },
          "number"_a)
      .def(
          "ask_for_loader",
          [](const Ring& ring) {
            return value_or_throw(without_gil([&] { return ring.link().ask_for_loader(); })).release();
          },
          "A socket for the loader process that the caller is to start; -1: it is not.")
      .def("writer", [](const Ring& ring) { return new RingWriter(ring.link().memory()); });
}

}  // namespace

void bind_ring(nb::module_& module) {
  bind_writer(module);
  bind_reader(module);
}

}  // namespace keepstep::rank
