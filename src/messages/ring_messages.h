// What a process that reads batches, and a loader process, tell the rings of their node's agent
// (agent/rings/ring_service.h), without an envelope. docs/formats/wire_worker.md#rings.
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
  uint32_t round = 0;  // batches, as the two below
  uint32_t ahead = 0;
  uint32_t behind = 0;
  uint64_t limit_bytes = 0;  // 0: none
  uint64_t position = 0;
  KEEPSTEP_FIELDS(name, round, ahead, behind, limit_bytes, position)
};
// Whether this process is to start the ring's loader process.
struct AskForLoader {
  static constexpr std::string_view kName = "ask_for_loader";
};
// It reads no more; the last one of a ring ends it. Not answered.
struct LeaveRing {
  static constexpr std::string_view kName = "leave_ring";
};
using FromReader = std::variant<OpenRing, AskForLoader, LeaveRing>;

// To OpenRing with the control memory and the data memory; to AskForLoader with a socket for that process, if it is to
// be started.
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

// To a loader process, which said hello: its pidfd with a packet of any bytes.
struct LoaderRuns {
  static constexpr std::string_view kName = "loader_runs";
};

}  // namespace keepstep::messages
