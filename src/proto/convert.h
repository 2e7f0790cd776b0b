// Converts between the brain's events and effects and the messages of control.proto. Lossless in both directions,
// except that a text longer than kMaxTextBytes loses its middle.
//
// Events and effects that name an identity carry it in the envelope; for the others the caller gives the newest
// identity it knows. `*_from_wire` refuse (INVALID_ARGUMENT, naming the field) anything that no honest peer sends.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "proto/control.pb.h"

namespace keepstep::proto {

class HeldTables;

inline constexpr int kMaxMessageBytes = 4 * 1024 * 1024;    // the receiver refuses a larger one
inline constexpr size_t kMaxRoutedBytes = 3 * 1024 * 1024;  // for a message between agents
// For a command's request, its whole answer, and a part of the answer.
inline constexpr size_t kMaxAskBytes = 16 * 1024;
inline constexpr size_t kMaxAnswerBytes = 64 << 20;
inline constexpr size_t kMaxAnswerPartBytes = 1 << 20;
inline constexpr size_t kMaxTextBytes = 1024 * 1024;  // the sender cuts a longer text

// `node` is the sending agent; NodeJoined and Sealed must name the same node. Tick is never sent. (Both asserted.)
control::FromAgent to_wire(const brain::Event& event, brain::NodeId node, brain::Identity newest);
StatusOr<brain::Event> event_from_wire(const control::FromAgent& message);

// A message to agents is assembled from two parts, so the larger one is made once for all of them:
// - the envelope: the recipient, and the identity. `members` are those of `node`; only a Prepare has any;
control::FromCoordinator envelope(const brain::Effect& effect, brain::NodeId node, brain::Identity newest,
                                  const std::vector<const brain::Member*>& members = {});
// - the payload: the effect. A Prepare's rank table is left out; see set_table and set_delta of control::Prepare.
//   Journal is never sent. (Asserted.)
control::FromCoordinator payload(const brain::Effect& effect);

// The table of a Prepare comes from `tables`; see HeldTables for its errors.
StatusOr<brain::Effect> effect_from_wire(const control::FromCoordinator& message, HeldTables& tables);

}  // namespace keepstep::proto
