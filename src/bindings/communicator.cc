// Binds comm/communicator.h: takes addresses and sizes, returns operation numbers. The caller must keep tensors alive.

#include "comm/communicator.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/convert.h"
#include "rank/link/communicator_handle.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {
namespace {

using comm::DataType;
using comm::ReduceOp;
using Address = uintptr_t;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

template <typename Pointer>
std::vector<Pointer> pointers(const std::vector<Address>& addresses) {
  std::vector<Pointer> result;
  for (Address address : addresses) {
    result.push_back(reinterpret_cast<Pointer>(address));
  }
  return result;
}

// operation, outcome, error, source, missing
using Result = std::tuple<uint64_t, int, std::string, uint32_t, std::vector<uint32_t>>;
Result to_python(const comm::Completion& completion) {
  return {completion.op, static_cast<int>(completion.outcome), completion.error, completion.source, completion.missing};
}

CommunicatorHandle::Use use(CommunicatorHandle& handle) { return value_or_throw(handle.use()); }

void bind_collectives(nb::class_<CommunicatorHandle>& handle) {
  handle
      .def(
          "create_group",
          [](CommunicatorHandle& self, const std::vector<uint32_t>& members, const std::string& key) {
            return value_or_throw(use(self)->create_group(members, key));
          },
          "members"_a, "key"_a)
      .def(
          "release_group", [](CommunicatorHandle& self, uint32_t group) { use(self)->release_group(group); }, "group"_a)
      .def("all_reduce",
           [](CommunicatorHandle& self, uint32_t group, Address data, size_t count, int dtype, int op,
              int64_t timeout_ns) {
             return use(self)->all_reduce(group, pointer(data), count, DataType(dtype), ReduceOp(op), timeout_ns);
           })
      .def("reduce",
           [](CommunicatorHandle& self, uint32_t group, Address data, size_t count, int dtype, int op, uint32_t root,
              int64_t timeout_ns) {
             return use(self)->reduce(group, pointer(data), count, DataType(dtype), ReduceOp(op), root, timeout_ns);
           })
      .def("broadcast",
           [](CommunicatorHandle& self, uint32_t group, Address data, size_t bytes, uint32_t root, int64_t timeout_ns) {
             return use(self)->broadcast(group, pointer(data), bytes, root, timeout_ns);
           })
      .def("all_gather",
           [](CommunicatorHandle& self, uint32_t group, Address input, const std::vector<Address>& outputs,
              size_t bytes, int64_t timeout_ns) {
             return use(self)->all_gather(group, pointer(input), pointers<void*>(outputs), bytes, timeout_ns);
           })
      .def("reduce_scatter",
           [](CommunicatorHandle& self, uint32_t group, const std::vector<Address>& inputs, Address output,
              size_t count, int dtype, int op, int64_t timeout_ns) {
             return use(self)->reduce_scatter(group, pointers<const void*>(inputs), pointer(output), count,
                                              DataType(dtype), ReduceOp(op), timeout_ns);
           })
      .def("gather",
           [](CommunicatorHandle& self, uint32_t group, Address input, const std::vector<Address>& outputs,
              size_t bytes, uint32_t root, int64_t timeout_ns) {
             return use(self)->gather(group, pointer(input), pointers<void*>(outputs), bytes, root, timeout_ns);
           })
      .def("scatter",
           [](CommunicatorHandle& self, uint32_t group, const std::vector<Address>& inputs, Address output,
              size_t bytes, uint32_t root, int64_t timeout_ns) {
             return use(self)->scatter(group, pointers<const void*>(inputs), pointer(output), bytes, root, timeout_ns);
           })
      .def("all_to_all",
           [](CommunicatorHandle& self, uint32_t group, const std::vector<Address>& inputs,
              const std::vector<size_t>& input_bytes, const std::vector<Address>& outputs,
              const std::vector<size_t>& output_bytes, int64_t timeout_ns) {
             return use(self)->all_to_all(group, pointers<const void*>(inputs), input_bytes, pointers<void*>(outputs),
                                          output_bytes, timeout_ns);
           })
      .def(
          "all_reduce_canonical",
          [](CommunicatorHandle& self, uint32_t group, uint32_t leaves, uint32_t begin, uint32_t end,
             const std::vector<Address>& partials, Address output, size_t count, int dtype, uint64_t weight,
             int64_t timeout_ns) {
            return use(self)->all_reduce_canonical(group, {leaves, begin, end}, pointers<const void*>(partials),
                                                   pointer(output), count, DataType(dtype), weight, timeout_ns);
          },
          "group"_a, "leaves"_a, "begin"_a, "end"_a, "partials"_a, "output"_a, "count"_a, "dtype"_a, "weight"_a,
          "timeout_ns"_a)
      .def(
          "barrier",
          [](CommunicatorHandle& self, uint32_t group, int64_t timeout_ns) {
            return use(self)->barrier(group, timeout_ns);
          },
          "group"_a, "timeout_ns"_a);
}

void bind_messages_and_waits(nb::class_<CommunicatorHandle>& handle) {
  handle
      .def("send", [](CommunicatorHandle& self, uint32_t group, Address data, size_t bytes, uint32_t to, uint32_t tag,
                      int64_t timeout_ns) { return use(self)->send(group, pointer(data), bytes, to, tag, timeout_ns); })
      .def("receive",
           [](CommunicatorHandle& self, uint32_t group, Address data, size_t bytes, uint32_t from, uint32_t tag,
              int64_t timeout_ns) { return use(self)->receive(group, pointer(data), bytes, from, tag, timeout_ns); })
      .def("test", [](CommunicatorHandle& self, uint64_t op) { return to_python(use(self)->test(op)); })
      .def("wait",
           [](CommunicatorHandle& self, uint64_t op) {
             const CommunicatorHandle::Use communicator = use(self);
             nb::gil_scoped_release release;
             return to_python(communicator->wait(op));
           })
      .def("forget", [](CommunicatorHandle& self, uint64_t op) { use(self)->forget(op); })
      .def("watch", [](CommunicatorHandle& self, uint64_t op) { use(self)->watch(op); })
      .def("next_completed",
           [](CommunicatorHandle& self) {
             std::vector<Result> results;
             const CommunicatorHandle::Use communicator = use(self);
             nb::gil_scoped_release release;
             for (const comm::Completion& completion : communicator->next_completed()) {
               results.push_back(to_python(completion));
             }
             return results;
           })
      .def("close", [](CommunicatorHandle& self) { use(self)->close(); })
      .def("end", &CommunicatorHandle::end, nb::call_guard<nb::gil_scoped_release>(),
           "Waits for the threads inside and for its operations, which must complete by themselves; then releases it.")
      .def("interrupted", [](CommunicatorHandle& self) { return use(self)->interrupted(); })
      .def("broken_link", [](CommunicatorHandle& self) { return use(self)->broken_link(); })
      .def(
          "recent",
          [](CommunicatorHandle& self) {
            nb::list records;
            for (const comm::FlightRecord& record : use(self)->recent()) {
              nb::dict entry;
              entry["group"] = record.group;
              entry["number"] = record.number;
              entry["kind"] = record.kind;
              entry["type"] = record.type;
              entry["reduction"] = record.reduction;
              entry["bytes"] = record.bytes;
              entry["outcome"] = static_cast<int>(record.outcome);
              entry["queued_ns"] = record.queued_ns;
              entry["started_ns"] = record.started_ns;
              entry["ended_ns"] = record.ended_ns;
              records.append(entry);
            }
            return records;
          },
          nb::sig("def recent(self) -> list[dict[str, object]]"))
      .def("collectives_entered", [](CommunicatorHandle& self) { return use(self)->collectives_entered(); });
}

}  // namespace

void bind_communicator(nb::module_& module) {
  nb::class_<CommunicatorHandle> handle(
      module, "Communicator",
      "The collectives of one generation (src/comm/communicator.h). Any thread; Interrupted "
      "after end().");
  bind_collectives(handle);
  bind_messages_and_waits(handle);
}

}  // namespace keepstep::rank
