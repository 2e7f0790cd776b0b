// The last collectives of a rank: what was called, how far it got, how it ended. For error reports and hung jobs.
//
// Keeps the newest `kFlightRecords`; older ones are forgotten. Any thread may call anything.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/layout.h"

namespace keepstep::comm {

inline constexpr size_t kFlightRecords = 256;

class FlightRecorder {
 public:
  void queued(OpId op, GroupId group, const Descriptor& descriptor);
  // Its turn came, as the `number`th collective of its group.
  void started(OpId op, uint64_t number);
  void ended(OpId op, Outcome outcome);

  // Oldest first.
  std::vector<FlightRecord> records() const;

 private:
  struct Entry {
    OpId op = 0;  // 0: none yet
    GroupId group = kWorld;
    uint64_t number = 0;
    Descriptor descriptor;
    Outcome outcome = Outcome::kPending;
    int64_t queued_ns = 0;
    int64_t started_ns = 0;
    int64_t ended_ns = 0;
  };
  Entry* find(OpId op);  // under mutex_

  mutable std::mutex mutex_;
  std::array<Entry, kFlightRecords> entries_;
  uint64_t written_ = 0;
};

}  // namespace keepstep::comm
