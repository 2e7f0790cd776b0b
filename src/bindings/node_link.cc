// Binds rank/link/node_link.h. Every call that may wait releases the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <tuple>

#include "bindings/convert.h"
#include "rank/link/communicator_handle.h"
#include "rank/link/node_start.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace keepstep::rank {

void bind_node_link(nb::module_& module) {
  nb::class_<NodeLink>(module, "NodeLink",
                       "A rank that keepstep did not start, and its node's agent (src/rank/link/node_link.h).")
      .def_static(
          "connect_or_start",
          [](const std::string& job, const std::string& command, const std::string& addresses, uint32_t self) {
            auto link = [&] {
              nb::gil_scoped_release release;
              return connect_or_start(job, command,
                                      addresses.empty() ? std::nullopt : std::optional(NodeAddresses{addresses, self}));
            }();
            return value_or_throw(std::move(link));
          },
          "job"_a, "command"_a, "addresses"_a = "", "self"_a = 0,
          "addresses: of all nodes' agents, with commas, if there are several; self: the place of this node's")
      .def(
          "join",
          [](NodeLink& link, const std::string& key, uint32_t rank, uint32_t world, int64_t timeout_ms) {
            const Status status = [&] {
              nb::gil_scoped_release release;
              return link.join(key, rank, world, timeout_ms);
            }();
            throw_if_error(status);
          },
          "key"_a, "rank"_a, "world"_a, "timeout_ms"_a)
      .def("communicator",
           [](NodeLink& self) {
             std::shared_ptr<comm::Communicator> communicator = self.communicator();
             return communicator == nullptr ? nullptr : std::make_unique<CommunicatorHandle>(std::move(communicator));
           })
      .def_prop_ro("rings_socket", &NodeLink::rings_socket)
      .def("abort", &NodeLink::abort, "because"_a)
      .def("interrupted", &NodeLink::interrupted)
      .def("why_interrupted", &NodeLink::why_interrupted, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "store",
          [](NodeLink& link, const std::string& op, const std::string& key, nb::bytes value, int64_t timeout_ms) {
            const std::string text(value.c_str(), value.size());
            StatusOr<StoreReply> answer = [&] {
              nb::gil_scoped_release release;
              return link.store(op, key, text, timeout_ms);
            }();
            const StoreReply reply = value_or_throw(std::move(answer));
            return std::tuple(reply.answered, reply.interrupted, reply.ok,
                              nb::bytes(reply.value.data(), reply.value.size()));
          },
          "op"_a, "key"_a, "value"_a, "timeout_ms"_a, "(answered, interrupted, ok, value)")
      .def("close", &NodeLink::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace keepstep::rank
