// Where the lines of one worker go: the console, log files, or both, depending on its rank and generation (see
// output_pump.h). Used by the pump's thread only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/job/job_spec.h"
#include "base/fd.h"
#include "brain/types.h"
#include "observe/status_line.h"

namespace keepstep::agent {

// The launcher's stdout and stderr. If one is closed, that is reported once; after that it is not used.
class Console {
 public:
  Console(observe::StatusLine* status_line, int out, int err) : status_line_(status_line), fds_{out, err} {}

  void write(size_t which, std::string_view text);
  // From now on, drops what the console does not accept at once. Any thread.
  void give_up() { give_up_ = true; }

 private:
  observe::StatusLine* status_line_;
  std::array<int, 2> fds_;
  std::array<bool, 2> broken_{};
  std::atomic<bool> give_up_{false};
};

class OutputSink {
 public:
  // `spec` and `console` must outlive the sink. `name` is used while the worker has no rank.
  OutputSink(const JobSpec& spec, Console& console, brain::WorkerId worker, std::string name)
      : spec_(&spec), console_(&console), worker_(worker), name_(std::move(name)) {}

  void assign(uint32_t rank, uint32_t generation);
  // Creates the folder before the first line needs it: others (torch's error.json) write there too.
  void make_folder();

  // `text`: whole lines, or a piece of an overlong one. `which`: 0 stdout, 1 stderr.
  void write(size_t which, std::string_view text);
  // The end of a stream, without a newline. The console gets a newline; the file keeps the bytes as they are.
  void write_last(size_t which, std::string_view text);
  void close(size_t which);

 private:
  std::string folder() const;
  void to_file(size_t which, std::string_view text);
  void to_console(size_t which, std::string_view text);
  bool prefixed(size_t which) const;
  bool on_console(size_t which) const;

  const JobSpec* spec_;
  Console* console_;
  brain::WorkerId worker_;
  std::string name_;
  std::optional<uint32_t> rank_;
  uint32_t generation_ = 0;
  std::array<Fd, 2> files_;
  std::array<bool, 2> file_failed_{};
  std::array<bool, 2> mid_line_{};  // the console has the first pieces of a long line
};

}  // namespace keepstep::agent
