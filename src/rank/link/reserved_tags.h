// Tags of the world group that are reserved for the engine. torch.distributed cannot collide with them: its tags are
// signed, and negative ones are refused where they become unsigned (src/bindings/communicator.cc).
#pragma once

#include <cstdint>

namespace keepstep::rank {

inline constexpr uint32_t kTagHydrationRequest = 0xFFFF'0100;
inline constexpr uint32_t kTagHydrationAnswer = 0xFFFF'0101;
inline constexpr uint32_t kTagHydrationBytes = 0xFFFF'0102;  // after each answer; a message of 0 bytes if it has none
inline constexpr uint32_t kTagCapsule = 0xFFFF'0200;
inline constexpr uint32_t kTagShardHead = 0xFFFF'0300;  // copies and parity of shards (shard_line.h)
inline constexpr uint32_t kTagShardAnswer = 0xFFFF'0301;
inline constexpr uint32_t kTagShardBytes = 0xFFFF'0302;
inline constexpr uint32_t kTagShardHandover = 0xFFFF'0310;  // to the rank that takes a shard over (shard_handover.h)
inline constexpr uint32_t kTagShardTexts = 0xFFFF'0320;     // from one sharding to another (shard_exchange.h)
inline constexpr uint32_t kTagShardRequest = 0xFFFF'0321;
inline constexpr uint32_t kTagShardPieces = 0xFFFF'0322;
inline constexpr uint32_t kTagShardBlock = 0xFFFF'0311;  // to the rank that rebuilds a shard (lost_shards.h)

}  // namespace keepstep::rank
