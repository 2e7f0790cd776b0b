// TCP ports on this machine's loopback.
#pragma once

#include <cstdint>

namespace keepstep::agent {

// A port that nobody listens on right now, for scripts that open a TCPStore of their own at MASTER_PORT.
uint16_t free_port();

}  // namespace keepstep::agent
