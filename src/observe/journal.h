// The journal: JSON lines in DIR/journal.jsonl, one per decision, with its reason. `keepstep report` reads nothing
// else. Of several nodes, node N > 0 writes what it sees itself to DIR/journal.nodeN.jsonl and DIR/metrics.nodeN.jsonl.
//
// A thread of the journal writes the lines, so that a disk or a file server that stalls delays no decision and no sign
// of life. Each line is one write(2) to a file opened with O_APPEND, so it is there whole or not at all, whichever
// process dies; a process that is killed loses the lines of its last instant. Every line has "t" (seconds since the job
// started), "mono" (CLOCK_MONOTONIC seconds, comparable between processes of the machine), "wall" (seconds since the
// epoch), "event", "term", "generation", "node", and "because" if there is a reason.
// Thread-safe; only flush() and the destructor wait for the disk. The schema of each event: docs/reference/journal.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::observe {

// "journal.jsonl" or "metrics.jsonl", or their names on a node other than the first. `kind`: "journal" or "metrics".
std::string journal_file(const std::string& kind, uint32_t node);

class Journal {
 public:
  // Creates DIR if needed. A journal of an earlier run there is an error that says so (nothing is overwritten). With an
  // empty `dir` lines are dropped.
  static StatusOr<std::unique_ptr<Journal>> open(const std::string& dir, uint32_t node);
  ~Journal();  // flush(kGoodbye)

  static constexpr std::chrono::seconds kGoodbye{5};

  void write(const std::string& event, brain::Identity identity, const std::string& because,
             const std::vector<brain::Field>& fields = {});

  // Writes one committed step to DIR/metrics.jsonl: {"step":..,"t":..,"mono":..,"loss":.., ...}. `json_members` is the
  // text of further members ("\"loss\": 1.5, \"lr\": 0.1"), or empty.
  void metrics(brain::Step step, const std::string& json_members);

  // Waits up to `limit` until the system has all lines so far. Returns whether it has.
  bool flush(std::chrono::milliseconds limit);

  // Seconds since the journal was opened, the "t" of a line written now.
  double now_s() const;

 private:
  struct Writer;

  explicit Journal(uint32_t node);
  const uint32_t node_;
  const int64_t started_ns_;
  std::shared_ptr<Writer> writer_;  // null: lines are dropped. Shared with the thread, which a stalled disk may block
  std::thread thread_;
};

}  // namespace keepstep::observe
