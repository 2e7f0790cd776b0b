// Shared by the binding files of both modules: how a call waits, and how its result reaches Python.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

#include "base/status.h"

namespace keepstep {

// Does nothing if OK; otherwise throws the status's exception, as the module defines it (engine_module.cc,
// checkpoint_module.cc). The GIL must be held.
void throw_if_error(const Status& status);

template <typename T>
T value_or_throw(StatusOr<T> result) {
  throw_if_error(result.status());
  return *std::move(result);
}

// Runs a call that needs no GIL and may take long; returns its result.
template <typename Call>
auto without_gil(Call call) {
  nanobind::gil_scoped_release release;
  return call();
}

inline nanobind::bytes to_bytes(const std::string& text) { return nanobind::bytes(text.data(), text.size()); }

}  // namespace keepstep

namespace keepstep::rank {  // of keepstep._engine

void bind_constants(nanobind::module_& module);
void bind_messages(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_communicator(nanobind::module_& module);
void bind_node_link(nanobind::module_& module);
void bind_canonical(nanobind::module_& module);
void bind_health(nanobind::module_& module);
void bind_data(nanobind::module_& module);
void bind_corpus_build(nanobind::module_& module);
void bind_ring(nanobind::module_& module);
void bind_packing(nanobind::module_& module);
void bind_watch(nanobind::module_& module);

}  // namespace keepstep::rank
