// Bindings of a worker's health checks (python/keepstep/torch/recovery/health.py).

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bindings/convert.h"
#include "rank/checks/gpu_health.h"
#include "rank/checks/loopback_check.h"

namespace nb = nanobind;
using namespace nanobind::literals;

namespace keepstep::rank {

void bind_health(nb::module_& module) {
  module.def(
      "check_loopback",
      [](bool tcp) {
        const nb::gil_scoped_release release;
        return std::string(check_loopback({.tcp = tcp}).message());
      },
      "tcp"_a, "Sums and messages between two ranks in this process; empty, or what went wrong.");
  module.def(
      "unfit_gpus",
      [] {
        const nb::gil_scoped_release release;
        std::vector<std::tuple<std::string, std::string, std::string>> unfit;
        const auto gpus = read_gpus();
        if (absl::IsInternal(gpus.status())) {
          unfit.emplace_back("gpu driver", std::string(gpus.status().message()), "an answer");
        }
        for (const GpuFinding& finding : gpus.ok() ? judge_gpus(*gpus) : std::vector<GpuFinding>()) {
          if (finding.unfit) {
            unfit.emplace_back(finding.check, finding.measured, finding.limit);
          }
        }
        return unfit;
      },
      "(check, measured, limit) of the GPUs here that no rank should use; none without NVIDIA's driver.");
}

}  // namespace keepstep::rank
