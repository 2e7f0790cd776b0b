// Checks that the data plane works on this machine. Two ranks in this process sum and exchange messages through the
// communicator that training will use: over shared memory, or as ranks of two nodes over TCP on loopback, with its
// handshake and frames. Takes a few milliseconds; part of a worker's health checks
// (docs/design/recovery.md#health-checks).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace keepstep::rank {

struct LoopbackCheck {
  bool tcp = false;                   // else shared memory
  std::string address = "127.0.0.1";  // with tcp: where both listen
  int64_t limit_ns = 10'000'000'000;  // for each of its operations
};

// Blocks; starts threads and ends them. INTERNAL, or the system's error: what failed, or which bytes were wrong.
Status check_loopback(const LoopbackCheck& check);

}  // namespace keepstep::rank
