// Answers requests from other nodes out of its own worker's region, as one more target there; so the Source stays as it
// is and knows nothing of nodes. All targets elsewhere share one channel, which no other target takes. Several requests
// are begun before the first is answered, so that the Source copies while answers are on their way. One thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <variant>

#include "base/status.h"
#include "brain/types.h"
#include "state/remote_wire.h"
#include "state/shared_link.h"

namespace keepstep::state {

class Relay {
 public:
  struct Answered {
    RemoteAnswer head;
    std::span<const std::byte> bytes;  // until the kSlots-th call of begin() after that for this one
  };

  // After the Source in `region` published `identity`. `self`: as for a Puller.
  Relay(std::byte* region, uint32_t self, brain::Identity identity, const std::atomic<uint32_t>* interrupted)
      : link_(region, self, interrupted, true), identity_(identity) {}

  // `request` as it came from the wire: anything may be in it. At most kSlots may be begun and not answered.
  void begin(const RemoteRequest& request);
  bool has_begun() const { return !begun_.empty(); }
  // To the request that was begun first. ABORTED when interrupted, and nothing else.
  StatusOr<Answered> answer();

 private:
  // Known at once, or asked of the source.
  using Begun = std::variant<Answered, RemoteRequest>;
  Begun begun(const RemoteRequest& request);
  Status look();
  Answered refuse(const RemoteRequest& request, std::string why);

  SharedLink link_;
  const brain::Identity identity_;
  bool found_ = false;
  std::deque<Begun> begun_;
  std::array<std::string, kSlots> refusals_;  // their texts, until they went out
  size_t refused_ = 0;
};

}  // namespace keepstep::state
