// What an engine is told by Python for its agent.
#pragma once

#include <nanobind/nanobind.h>

#include "rank/engine/engine.h"

namespace keepstep::rank {

void bind_told(nanobind::class_<Engine>& engine);

}  // namespace keepstep::rank
