// Between the brain's events and effects and the messages of control.proto. Lossless both ways, except that a text
// longer than kMaxTextBytes loses its middle.
//
// Events and effects that name an identity carry it in the envelope; for the others the caller gives the newest
// identity it knows. `*_from_wire` refuse (INVALID_ARGUMENT, naming the field) what no honest peer sends.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "proto/control.pb.h"

namespace keepstep::proto {

class HeldTables;

inline constexpr int kMaxMessageBytes = 4 * 1024 * 1024;    // a larger one is refused by the receiver
inline constexpr size_t kMaxRoutedBytes = 3 * 1024 * 1024;  // of a message from agent to agent
// Of a command's request, of its whole answer, and of a part of that.
inline constexpr size_t kMaxAskBytes = 16 * 1024;
inline constexpr size_t kMaxAnswerBytes = 64 << 20;
inline constexpr size_t kMaxAnswerPartBytes = 1 << 20;
inline constexpr size_t kMaxTextBytes = 1024 * 1024;  // a longer text is cut by the sender

// `node` is the agent that speaks; NodeJoined and Sealed must name the same. Tick never travels. (Both asserted.)
control::FromAgent to_wire(const brain::Event& event, brain::NodeId node, brain::Identity newest);
StatusOr<brain::Event> event_from_wire(const control::FromAgent& message);

// What goes to agents is put together from two parts, so that the larger one is made once for all of them:
// - the envelope: whom it goes to, and the identity. `members` are those of `node`; only a Prepare has any;
control::FromCoordinator envelope(const brain::Effect& effect, brain::NodeId node, brain::Identity newest,
                                  const std::vector<const brain::Member*>& members = {});
// - the payload: the effect. In a Prepare the rank table is left out; see set_table and set_delta of control::Prepare.
// Journal never travels. (Asserted.)
control::FromCoordinator payload(const brain::Effect& effect);

// The table of a Prepare comes from `tables`, which see for its errors.
StatusOr<brain::Effect> effect_from_wire(const control::FromCoordinator& message, HeldTables& tables);

}  // namespace keepstep::proto
