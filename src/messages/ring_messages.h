// Messages from processes that read batches, and from loader processes, to the rings of their node's agent
// (agent/rings/ring_service.h), without an envelope: docs/formats/wire_worker.md#rings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "messages/schema.h"

namespace keepstep::messages {

inline constexpr size_t kMaxRingNameBytes = 200;
inline constexpr size_t kMaxRingMessageBytes = 4096;

// Joins the ring of this name, for items from `position` on.
struct OpenRing {
  static constexpr std::string_view kName = "open_ring";
  std::string name;
  uint32_t round = 0;  // in batches, like the two below
  uint32_t ahead = 0;
  uint32_t behind = 0;
  uint64_t limit_bytes = 0;  // 0: no limit
  uint64_t position = 0;
  KEEPSTEP_FIELDS(name, round, ahead, behind, limit_bytes, position)
};
// Asks whether this process should start the ring's loader process.
struct AskForLoader {
  static constexpr std::string_view kName = "ask_for_loader";
};
// The process reads no more; the last one to leave ends the ring. Not answered.
struct LeaveRing {
  static constexpr std::string_view kName = "leave_ring";
};
using FromReader = std::variant<OpenRing, AskForLoader, LeaveRing>;

// Answers OpenRing, with the control memory and the data memory; or AskForLoader, with a socket for the loader process
// if this process should start it.
struct RingAnswer {
  static constexpr std::string_view kName = "ring_answer";
  uint32_t row = 0;
  KEEPSTEP_FIELDS(row)
};
struct RingRefusal {
  static constexpr std::string_view kName = "ring_refusal";
  std::string because;
  KEEPSTEP_FIELDS(because)
};
using ToReader = std::variant<RingAnswer, RingRefusal>;

// To a loader process that said hello (its pidfd, with a packet of any content).
struct LoaderRuns {
  static constexpr std::string_view kName = "loader_runs";
};

}  // namespace keepstep::messages
