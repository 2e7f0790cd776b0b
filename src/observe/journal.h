// The journal: JSON lines in DIR/journal.jsonl, one per decision, with its reason. The only source of `keepstep
// report`. Node N of several, N > 0, writes DIR/journal.nodeN.jsonl and DIR/metrics.nodeN.jsonl: what it sees itself.
//
// A thread of the journal writes the lines, so that a disk or a file server that stalls stops no decision and no sign
// of life. Each line is one write(2) to a file opened with O_APPEND: whole or absent, whichever process dies; a process
// that is killed loses the lines of its last instant. Fields of every line: "t" (seconds since the job started), "mono"
// (CLOCK_MONOTONIC seconds, comparable between processes of the machine), "wall" (seconds since the epoch), "event",
// "term", "generation", "node", and "because" where there is a reason.
// Thread-safe; no call waits for the disk but flush() and the destructor. The line's schema per event:
// docs/reference/journal.md.
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

// "journal.jsonl" and "metrics.jsonl", or those of another node than the first. `kind`: "journal" or "metrics".
std::string journal_file(const std::string& kind, uint32_t node);

class Journal {
 public:
  // Creates DIR if needed; a journal of an earlier run there is an error that says so (nothing is overwritten).
  // With an empty `dir` lines are dropped.
  static StatusOr<std::unique_ptr<Journal>> open(const std::string& dir, uint32_t node);
  ~Journal();  // flush(kGoodbye)

  static constexpr std::chrono::seconds kGoodbye{5};

  void write(const std::string& event, brain::Identity identity, const std::string& because,
             const std::vector<brain::Field>& fields = {});

  // One committed step into DIR/metrics.jsonl: {"step":..,"t":..,"mono":..,"loss":.., ...}; `json_members` is the text
  // of further members ("\"loss\": 1.5, \"lr\": 0.1"), may be empty.
  void metrics(brain::Step step, const std::string& json_members);

  // Waits until the system has all lines so far, at most `limit`; whether it has.
  bool flush(std::chrono::milliseconds limit);

  // Seconds since the journal was opened, the "t" of a line written now.
  double now_s() const;

 private:
  struct Writer;

  explicit Journal(uint32_t node);
  const uint32_t node_;
  const int64_t started_ns_;
  std::shared_ptr<Writer> writer_;  // none: lines are dropped. Shared with the thread, which a stalled disk may hold
  std::thread thread_;
};

}  // namespace keepstep::observe
