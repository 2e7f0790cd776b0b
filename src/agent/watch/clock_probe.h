// How far the wall clock of this machine is from that of another one, asked over a connection that is there anyway: of
// several questions and answers the quickest one counts, as in NTP, since the others waited somewhere. Pure: clocks
// come in as numbers.
#pragma once

#include <cstdint>
#include <optional>

namespace keepstep::agent {

struct ClockOffset {
  int64_t offset_ns = 0;      // of our wall clock from theirs: above 0, ours is ahead
  int64_t round_trip_ns = 0;  // of the quickest exchange; the offset is known to half of it

  // Whether the clocks are surely further apart than that.
  bool beyond(int64_t limit_ns) const;
};

class ClockProbe {
 public:
  static constexpr int kExchanges = 8;

  // Begins anew; what is still under way does not count.
  void begin();
  // Our next question, which carries this number; the one before it, if it is not answered, is given up.
  // `wall_ns`, `monotonic_ns`: ours, now.
  uint64_t ask(int64_t wall_ns, int64_t monotonic_ns);
  // Their answer came now. False: to no question that we wait for.
  bool answered(uint64_t number, int64_t their_wall_ns, int64_t monotonic_ns);
  // Questions since begin() to which no answer came, in a row.
  int unanswered() const { return unanswered_; }

  // Once enough were answered.
  std::optional<ClockOffset> result() const;

 private:
  uint64_t number_ = 0;  // of the question asked last
  bool waits_ = false;   // for the answer to it
  int unanswered_ = 0;
  int64_t asked_wall_ns_ = 0;
  int64_t asked_ns_ = 0;
  int answers_ = 0;
  ClockOffset best_;
};

}  // namespace keepstep::agent
