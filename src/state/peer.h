// A target's line to one source on another node, for one generation. The line itself (messages) comes from outside;
// what the target's links learned about the source is stored here, because each pull makes new links.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "state/link.h"
#include "state/remote_wire.h"

namespace keepstep::state {

class Peer {
 public:
  struct Answer {
    RemoteAnswer head;
    const std::byte* bytes = nullptr;  // room for kSlotBytes, filled from the front; until done()
  };

  virtual ~Peer() = default;
  // Sends a request (and fills in its number); never waits. At most kRemoteWindow requests and one kLook at a time.
  virtual void ask(RemoteRequest request) = 0;
  // The answer to the oldest request. DEADLINE_EXCEEDED: none within `limit_ns`; ABORTED: interrupted; UNAVAILABLE: the
  // line broke.
  virtual StatusOr<Answer> answer(int64_t limit_ns) = 0;
  virtual void done() = 0;

  bool looking = false;            // a kLook is outstanding
  std::optional<Published> found;  // what it answered
  std::string lost;                // why this source is no longer usable; empty: it is
  bool silent = false;             // lost because it did not answer
};

}  // namespace keepstep::state
