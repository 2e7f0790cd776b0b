// How far the wall clock of this machine is from that of another, measured over an existing connection. As in NTP,
// several questions are asked and the quickest answer is used, because the others were delayed somewhere. Pure: times
// are passed in as numbers.
#pragma once

#include <cstdint>
#include <optional>

namespace keepstep::agent {

struct ClockOffset {
  int64_t offset_ns = 0;      // of our wall clock from theirs: above 0, ours is ahead
  int64_t round_trip_ns = 0;  // of the quickest exchange; the offset is known to half of it

  // Whether the clocks are certainly further apart than `limit_ns`.
  bool beyond(int64_t limit_ns) const;
};

class ClockProbe {
 public:
  static constexpr int kExchanges = 8;

  // Starts over; requests still in flight are ignored.
  void begin();
  // Returns the number of our next question. If the previous question is still unanswered, it is given up. `wall_ns`,
  // `monotonic_ns`: our clocks now.
  uint64_t ask(int64_t wall_ns, int64_t monotonic_ns);
  // Their answer arrived just now. False if it answers no pending question.
  bool answered(uint64_t number, int64_t their_wall_ns, int64_t monotonic_ns);
  // Questions in a row, since begin(), that were not answered.
  int unanswered() const { return unanswered_; }

  // Set once enough questions were answered.
  std::optional<ClockOffset> result() const;

 private:
  uint64_t number_ = 0;  // of the last question
  bool waits_ = false;   // for its answer
  int unanswered_ = 0;
  int64_t asked_wall_ns_ = 0;
  int64_t asked_ns_ = 0;
  int answers_ = 0;
  ClockOffset best_;
};

}  // namespace keepstep::agent
