// Between the brain's events and effects and the messages of control.proto. Lossless both ways, except that a text
// longer than kMaxTextBytes loses its middle.
//
// Events and effects that name an identity carry it in the envelope; for the others the caller gives the newest
// identity it knows. `*_from_wire` refuse (INVALID_ARGUMENT, naming the field) what no honest peer sends.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "brain/membership.h"
#include "proto/control.pb.h"

namespace keepstep::proto {

inline constexpr int kMaxMessageBytes = 4 * 1024 * 1024;  // a larger one is refused by the receiver
inline constexpr size_t kMaxTextBytes = 1024 * 1024;      // a longer text is cut by the sender

// `node` is the agent that speaks; NodeJoined and Sealed must name the same. Tick never travels. (Both asserted.)
control::FromAgent to_wire(const brain::Event& event, brain::NodeId node, brain::Identity newest);
StatusOr<brain::Event> event_from_wire(const control::FromAgent& message);

// `node` is the agent that is spoken to; Spawn must name the same. Journal never travels. (Both asserted.)
control::FromCoordinator to_wire(const brain::Effect& effect, brain::NodeId node, brain::Identity newest);
StatusOr<brain::Effect> effect_from_wire(const control::FromCoordinator& message);

}  // namespace keepstep::proto
