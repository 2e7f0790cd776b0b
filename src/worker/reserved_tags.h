// Tags of the world group that the engine keeps for itself. torch.distributed cannot collide with them: its tags are
// signed, and negative ones are refused where they become unsigned (python_communicator.cc).
#pragma once

#include <cstdint>

namespace keepstep::worker {

inline constexpr uint32_t kTagHydrationRequest = 0xFFFF'0100;
inline constexpr uint32_t kTagHydrationAnswer = 0xFFFF'0101;
inline constexpr uint32_t kTagHydrationBytes = 0xFFFF'0102;  // after each answer; none is a message of 0 bytes
inline constexpr uint32_t kTagCapsule = 0xFFFF'0200;

}  // namespace keepstep::worker
