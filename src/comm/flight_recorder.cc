#include "comm/flight_recorder.h"

#include <algorithm>

#include "base/clock.h"
#include "comm/numbers/reduce.h"
#include "comm/operation.h"

namespace keepstep::comm {

void FlightRecorder::queued(OpId op, GroupId group, const Descriptor& descriptor) {
  const int64_t now_ns = monotonic_ns();
  const std::lock_guard lock(mutex_);
  entries_[written_++ % kFlightRecords] = {.op = op, .group = group, .descriptor = descriptor, .queued_ns = now_ns};
}

FlightRecorder::Entry* FlightRecorder::find(OpId op) {
  // Almost always one of the newest.
  for (uint64_t back = 1; back <= std::min<uint64_t>(written_, kFlightRecords); ++back) {
    Entry& entry = entries_[(written_ - back) % kFlightRecords];
    if (entry.op == op) {
      return &entry;
    }
  }
  return nullptr;
}

void FlightRecorder::started(OpId op, uint64_t number) {
  const int64_t now_ns = monotonic_ns();
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(op); entry != nullptr) {
    entry->number = number;
    entry->started_ns = now_ns;
  }
}

void FlightRecorder::ended(OpId op, Outcome outcome) {
  const int64_t now_ns = monotonic_ns();
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(op); entry != nullptr) {
    entry->outcome = outcome;
    entry->ended_ns = now_ns;
  }
}

std::vector<FlightRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightRecord> records;
  for (uint64_t number = written_ - std::min<uint64_t>(written_, kFlightRecords); number < written_; ++number) {
    const Entry& entry = entries_[number % kFlightRecords];
    const auto kind = static_cast<Kind>(entry.descriptor.kind);
    const bool canonical = kind == Kind::kAllReduceCanonical;
    const bool reduces = canonical || kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
    records.push_back({.op = entry.op,
                       .group = entry.group,
                       .number = entry.number,
                       .kind = name(kind),
                       .type = reduces ? name(static_cast<DataType>(entry.descriptor.dtype)) : "",
                       .reduction = reduces && !canonical ? name(static_cast<ReduceOp>(entry.descriptor.op)) : "",
                       .bytes = entry.descriptor.bytes,
                       .outcome = entry.outcome,
                       .queued_ns = entry.queued_ns,
                       .started_ns = entry.started_ns,
                       .ended_ns = entry.ended_ns});
  }
  return records;
}

}  // namespace keepstep::comm
