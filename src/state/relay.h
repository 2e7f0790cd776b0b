// Answers requests from other nodes out of its own worker's region, as one more target there; so the Source needs to
// know nothing about nodes. All targets on other nodes share one channel, which no other target takes. Several requests
// are begun before the first is answered, so that the Source copies while answers are in transit. One thread.
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
    std::span<const std::byte> bytes;  // valid until the kSlots-th begin() after this request's own
  };

  // Call after the Source in `region` published `identity`. `self`: as for a Puller.
  Relay(std::byte* region, uint32_t self, brain::Identity identity, const std::atomic<uint32_t>* interrupted)
      : link_(region, self, interrupted, true), identity_(identity) {}

  // `request` comes unchecked from the wire. At most kSlots may be begun and not yet answered.
  void begin(const RemoteRequest& request);
  bool has_begun() const { return !begun_.empty(); }
  // The answer to the request that was begun first. The only error is ABORTED, when interrupted.
  StatusOr<Answered> answer();

 private:
  // Known at once, or requested from the source.
  using Begun = std::variant<Answered, RemoteRequest>;
  Begun begun(const RemoteRequest& request);
  Status look();
  Answered refuse(const RemoteRequest& request, std::string why);

  SharedLink link_;
  const brain::Identity identity_;
  bool found_ = false;
  std::deque<Begun> begun_;
  // Texts of refusals, until they were sent. Requests are refused when they are begun or when they are answered, so
  // while one of the texts lives up to 2 * (kSlots - 1) others may.
  std::array<std::string, 2 * kSlots> refusals_;
  size_t refused_ = 0;
};

}  // namespace keepstep::state
