// Tags of the world group that the engine keeps for itself; what users send must stay below.
#pragma once

#include <cstdint>

namespace keepstep::worker {

inline constexpr uint32_t kFirstReservedTag = 0xFFFF'0000;
inline constexpr uint32_t kTagHydrationRequest = 0xFFFF'0100;
inline constexpr uint32_t kTagHydrationAnswer = 0xFFFF'0101;
inline constexpr uint32_t kTagHydrationBytes = 0xFFFF'0102;  // after each answer; none is a message of 0 bytes
inline constexpr uint32_t kTagCapsule = 0xFFFF'0200;         // and the next one: odd versions

}  // namespace keepstep::worker
