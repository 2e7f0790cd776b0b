// One live line at the bottom of a terminal, and the only way of writing to the console while it is there.
//
//   step 118  0.402 s/step  loss 2.314  ranks 4/4 +1 spare  generation 3  recoveries 2
//
// It is drawn on standard error, at most ten times a second, cut to the terminal's width; it is cleared before other
// output and drawn again after. If standard error is no terminal (or TERM=dumb) nothing is ever drawn and
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
  std::optional<brain::Step> step;    // the newest committed one
  std::optional<double> step_time_s;  // of recent steps
  std::optional<double> loss;
  uint32_t ranks = 0;  // that train now
  uint32_t world_size = 0;
  uint32_t spares = 0;  // parked
  uint32_t generation = 0;
  uint32_t recoveries = 0;
  std::string note;  // what is going on besides training: "replacing rank 3", "starting"
};

// The text, without escape sequences, cut to `columns` (0: not cut).
std::string format_status(const RunStatus& status, size_t columns);

// Writes all of `text` to `fd`, waiting for room. False if it cannot be written, or if `give_up` is set while there
// is no room. The caller's thread has SIGPIPE blocked or ignored. The one way to write to a console.
bool write_console(int fd, std::string_view text, const std::atomic<bool>* give_up = nullptr);

class StatusLine {
 public:
  // Draws on `terminal_fd`, which stays the caller's; decides now whether it is a terminal that can be drawn on.
  // `forced` is for tests: draw whatever the descriptor is.
  explicit StatusLine(int terminal_fd = 2, bool forced = false);
  ~StatusLine();  // close()
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool live() const { return live_; }

  // New values. Drawn at once, or, if less than 100 ms passed since the last drawing (or the terminal takes nothing
  // now), with a later call of update(), print_above() or refresh(). Never waits.
  void update(const RunStatus& status);

  // Draws what an update() left undrawn, once it is time. A loop of the agent calls it now and then. Never waits.
  void refresh();

  // Writes `text` (whole lines, each with its newline) to `fd` with the status line out of the way; see
  // write_console(). Every console line of a job goes through here.
  bool print_above(std::string_view text, int fd = 1, const std::atomic<bool>* give_up = nullptr);

  // Takes the line away, for good.
  void close();

 private:
  void draw_if_due();
  void clear(const std::atomic<bool>* give_up);

  const int fd_;
  const bool live_;
  std::mutex values_;  // of what is shown; held for moments
  std::optional<RunStatus> status_;
  bool dirty_ = false;  // changed since it was drawn
  std::mutex output_;   // of the console; held while writing
  bool drawn_ = false;
  std::atomic<bool> closed_{false};
  int64_t drawn_at_ns_ = 0;
};

}  // namespace keepstep::observe
