// Brings what workers print to the console and to log files, with torchrun's meaning of --redirects, --tee and
// --local-ranks-filter.
//
//   by default     to the launcher's stdout and stderr, unprefixed
//   --redirects    to files only
//   --tee          to files, and to the console prefixed `[default0]:`
//   --log-dir      files for every rank and generation, besides what the other two say; without it there are no
//                  files and redirects are ignored (the launcher sets a directory where redirects or tee ask for one)
//
// Files: LOG_DIR/RUN_ID/attempt_GENERATION/RANK/stdout.log and stderr.log, appended to, made when the first line comes.
// (torchrun puts a random suffix behind RUN_ID and counts attempts from 0; keepstep's path is known before the run.)
// A spare's output before it has a rank goes to LOG_DIR/RUN_ID/spares/WORKER/. LOG_DIR /dev/null: no files, and what is
// redirected is dropped.
//
// One thread reads all pipes (epoll). Whole lines are written at once; the unfinished last line of a stream at its
// end; a line longer than 64 KiB in pieces. Memory is bounded: 64 KiB a stream and the pipe (256 KiB where the system
// grants it), then the worker's own write(2) waits, as it would on a console nobody reads.
// Thread-safe. Only flush() and finish() wait, and those are bounded: a console that takes nothing holds up the lines,
// never the agent.
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

  // Makes the pipes of a worker; returns the write ends (stdout, stderr; close-on-exec) to hand to the child, to be
  // closed here afterwards. `name` ("rank0", "spare1") is for messages and the prefix of a spare's teed lines. Without
  // `rank` the worker is a spare. RESOURCE_EXHAUSTED when descriptors are short.
  StatusOr<std::pair<Fd, Fd>> open(brain::WorkerId worker, const std::string& name, std::optional<uint32_t> rank,
                                   uint32_t generation);

  // From here on lines of `worker` are rank's in `generation`: a spare became a rank, or a generation began. What lies
  // in the pipe still goes where it went. The folder of rank and generation is made (for torch's error.json, too).
  // Repeats and unknown workers are harmless.
  void assign(brain::WorkerId worker, uint32_t rank, uint32_t generation);

  // Called with the whole lines of a worker before they are written (and with the pieces of an over-long one), from the
  // pump's thread. To be set before the first open().
  using Watcher = std::function<void(brain::WorkerId, std::string_view)>;
  void watch(Watcher watcher);

  // A line of the launcher's own, to its stderr; what it quotes is shown as terminal_text() does.
  void say(const std::string& line);

  // Waits until both streams of a dead worker ended and are written, at most `limit_ms`. After that (a grandchild
  // holds them open, or the console takes nothing) what has come is still written, the rest is let go.
  void flush(brain::WorkerId worker, int limit_ms = 2000);

  // Flushes every worker (at most `limit_ms` together) and ends the thread; open() fails afterwards.
  void finish(int limit_ms = 2000);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::agent
