// What Python reports to an engine for its agent.
#pragma once

#include <nanobind/nanobind.h>

#include "rank/engine/engine.h"

namespace keepstep::rank {

void bind_told(nanobind::class_<Engine>& engine);

}  // namespace keepstep::rank
