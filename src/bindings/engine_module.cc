// The Python module keepstep._engine: the worker engine, bound one to one.

#include <nanobind/nanobind.h>

#include "bindings/convert.h"

namespace nb = nanobind;

namespace keepstep {
namespace {

// Owned by the module, which lives as long as the process.
PyObject* interrupted_type = nullptr;
PyObject* job_ended_type = nullptr;

}  // namespace

// ABORTED: keepstep._engine.Interrupted. CANCELLED: keepstep._engine.JobEnded. Others: RuntimeError.
void throw_if_error(const Status& status) {
  if (status.ok()) {
    return;
  }
  const std::string message(status.message());
  PyObject* type = PyExc_RuntimeError;
  if (absl::IsAborted(status)) {
    type = interrupted_type;
  } else if (absl::IsCancelled(status)) {
    type = job_ended_type;
  }
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

}  // namespace keepstep

NB_MODULE(_engine, module) {
  using namespace keepstep;
  using namespace keepstep::rank;
  module.doc() = "The keepstep worker engine (C++); see include/keepstep and docs/design.";
  interrupted_type = PyErr_NewException("keepstep._engine.Interrupted", PyExc_BaseException, nullptr);
  job_ended_type = PyErr_NewException("keepstep._engine.JobEnded", PyExc_BaseException, nullptr);
  module.attr("Interrupted") = nb::handle(interrupted_type);
  module.attr("JobEnded") = nb::handle(job_ended_type);
  // Objects held by a process group live until the process ends.
  nanobind::set_leak_warnings(false);
  bind_constants(module);
  bind_messages(module);
  bind_engine(module);
  bind_communicator(module);
  bind_node_link(module);
  bind_canonical(module);
  bind_health(module);
  bind_data(module);
  bind_corpus_build(module);
  bind_ring(module);
  bind_packing(module);
  bind_watch(module);
}
