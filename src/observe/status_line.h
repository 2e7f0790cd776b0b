// One live line at the bottom of a terminal, and the only way to write to the console while it is there.
//
//   step 118  0.402 s/step  loss 2.314  ranks 4/4 +1 spare  generation 3  recoveries 2
//
// It is drawn on standard error, at most ten times a second, and cut to the terminal's width. It is cleared before
// other output and drawn again after it. If standard error is not a terminal (or TERM=dumb) nothing is drawn and
// print_above() only writes. Thread-safe; only print_above() may wait for the terminal (somebody pressed Ctrl-S).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "brain/types.h"

namespace keepstep::observe {

// What the line shows. The agent fills it; unset values are left out.
struct RunStatus {
  std::optional<brain::Step> step;    // the newest committed step
  std::optional<double> step_time_s;  // of recent steps
  std::optional<double> loss;
  uint32_t ranks = 0;  // training now
  uint32_t world_size = 0;
  uint32_t spares = 0;  // parked
  uint32_t generation = 0;
  uint32_t recoveries = 0;
  std::string note;  // what else is going on: "replacing rank 3", "starting"
};

// The text, without escape sequences, cut to `columns` (0: not cut).
std::string format_status(const RunStatus& status, size_t columns);

// Writes all of `text` to `fd`, waiting for room. False if it cannot be written, or if `give_up` is set while there is
// no room. SIGPIPE must be blocked or ignored in the calling thread. All writes to a console go through here.
bool write_console(int fd, std::string_view text, const std::atomic<bool>* give_up = nullptr);

class StatusLine {
 public:
  // Draws on `terminal_fd`, which stays the caller's. Decides now whether it is a terminal that can be drawn on.
  // `forced` is for tests: draw on any descriptor.
  explicit StatusLine(int terminal_fd = 2, bool forced = false);
  ~StatusLine();  // close()
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool live() const { return live_; }

  // Sets new values. They are drawn at once or, if the last drawing was less than 100 ms ago (or the terminal is not
  // ready), by a later call of update(), print_above() or refresh(). Never waits.
  void update(const RunStatus& status);

  // Draws what an update() left undrawn, once it is due. The agent's loop calls it regularly. Never waits.
  void refresh();

  // Writes `text` (whole lines, each with its newline) to `fd`, clearing the status line first; see write_console().
  // Every console line of a job goes through here.
  bool print_above(std::string_view text, int fd = 1, const std::atomic<bool>* give_up = nullptr);

  // Removes the line for good.
  void close();

 private:
  void draw_if_due();
  void clear(const std::atomic<bool>* give_up);

  const int fd_;
  const bool live_;
  std::mutex values_;  // guards the values; held briefly
  std::optional<RunStatus> status_;
  bool dirty_ = false;  // changed since the last drawing
  std::mutex output_;   // guards the console; held while writing
  bool drawn_ = false;
  std::atomic<bool> closed_{false};
  int64_t drawn_at_ns_ = 0;
};

}  // namespace keepstep::observe
