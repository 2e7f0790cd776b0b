// Writes what workers print to the console and to log files, with torchrun's meaning of --redirects, --tee and
// --local-ranks-filter.
//
//   by default     to the launcher's stdout and stderr, unprefixed
//   --redirects    to files only
//   --tee          to files, and to the console prefixed `[default0]:`
//   --log-dir      files for every rank and generation, in addition to the other two; without it there are no
//                  files and redirects are ignored (the launcher sets a directory if redirects or tee need one)
//
// Files: LOG_DIR/RUN_ID/attempt_GENERATION/RANK/stdout.log and stderr.log, appended to, created with the first line.
// (torchrun adds a random suffix to RUN_ID and counts attempts from 0; keepstep's path is known before the run.) A
// spare's output before it has a rank goes to LOG_DIR/RUN_ID/spares/WORKER/. With LOG_DIR /dev/null there are no files,
// and redirected output is dropped.
//
// One thread reads all pipes (epoll). It writes whole lines at once, the unfinished last line of a stream at its end,
// and a line longer than 64 KiB in pieces. Memory is bounded: 64 KiB per stream, plus the pipe (256 KiB if the system
// grants it). After that the worker's own write(2) waits, as it would on a console that nobody reads.
// Thread-safe. Only flush() and finish() wait, and only for a limited time: a stalled console holds up the lines, never
// the agent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "agent/job/job_spec.h"
#include "base/fd.h"
#include "base/status.h"
#include "brain/types.h"
#include "observe/status_line.h"

namespace keepstep::agent {

// LOG_DIR/RUN_ID/attempt_GENERATION/RANK; empty if nothing is written to files.
std::string log_folder(const JobSpec& spec, uint32_t rank, uint32_t generation);

class OutputPump {
 public:
  // `status_line` may be null; otherwise it must outlive the pump, and every console line goes through it. Lines go to
  // `console_out` and `console_err`, which stay the caller's.
  OutputPump(const JobSpec& spec, observe::StatusLine* status_line, int console_out = 1, int console_err = 2);
  ~OutputPump();  // finish()
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // Creates the pipes of a worker. Returns the write ends (stdout, stderr; close-on-exec): hand them to the child, then
  // close them here. `name` ("rank0", "spare1") is for messages and the prefix of a spare's teed lines. Without `rank`
  // the worker is a spare. RESOURCE_EXHAUSTED if descriptors run out.
  StatusOr<std::pair<Fd, Fd>> open(brain::WorkerId worker, const std::string& name, std::optional<uint32_t> rank,
                                   uint32_t generation);

  // From now on lines of `worker` belong to `rank` in `generation`: a spare became a rank, or a generation began. What
  // is already in the pipe still goes to the previous place. Creates the folder of that rank and generation (also for
  // torch's error.json). Repeated calls and unknown workers are harmless.
  void assign(brain::WorkerId worker, uint32_t rank, uint32_t generation);

  // Called from the pump's thread with the whole lines of a worker before they are written (and with the pieces of an
  // overlong one). Set it before the first open().
  using Watcher = std::function<void(brain::WorkerId, std::string_view)>;
  void watch(Watcher watcher);

  // A line of the launcher itself, to its stderr. Quoted text is shown as by terminal_text().
  void say(const std::string& line);

  // Waits until both streams of a dead worker ended and are written, at most `limit_ms`. After that (a grandchild holds
  // them open, or the console is stalled) what has arrived is still written; the rest is dropped.
  void flush(brain::WorkerId worker, int limit_ms = 2000);

  // Flushes every worker (at most `limit_ms` in total) and ends the thread; open() fails afterwards.
  void finish(int limit_ms = 2000);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::agent
