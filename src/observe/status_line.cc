#include "observe/status_line.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace keepstep::observe {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;
constexpr size_t kPieceBytes = 4096;  // PIPE_BUF: what a pipe with room accepts without waiting
constexpr int kLookAgainMs = 100;     // how often a blocked writer checks `give_up`
constexpr std::string_view kClear = "\r\x1b[2K";
constexpr std::atomic<bool> kAtOnce{true};

bool can_be_drawn_on(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0 && *term != '\0';
}

size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void add(std::string& text, const std::string& part) {
  if (!text.empty()) {
    text += "  ";
  }
  text += part;
}

}  // namespace

std::string format_status(const RunStatus& status, size_t columns) {
  std::string text;
  if (status.step) {
    add(text, absl::StrFormat("step %d", *status.step));
  }
  if (status.step_time_s) {
    add(text, absl::StrFormat("%.3f s/step", *status.step_time_s));
  }
  if (status.loss) {
    add(text, absl::StrFormat("loss %.4g", *status.loss));
  }
  add(text, absl::StrFormat("ranks %d/%d", status.ranks, status.world_size));
  if (status.spares > 0) {
    text += absl::StrFormat(" +%d spare%s", status.spares, status.spares == 1 ? "" : "s");
  }
  if (status.generation > 0) {
    add(text, absl::StrFormat("generation %d", status.generation));
  }
  add(text, absl::StrFormat("recoveries %d", status.recoveries));
  if (!status.note.empty()) {
    add(text, status.note);
  }
  // A control character in a note (a rank's message) would move the cursor.
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  if (columns > 0 && text.size() > columns) {
    text.resize(columns);
  }
  return text;
}

bool write_console(int fd, std::string_view text, const std::atomic<bool>* give_up) {
  while (!text.empty()) {
    pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&room, 1, give_up != nullptr && *give_up ? 0 : kLookAgainMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
      if (give_up != nullptr && *give_up) {
        return false;
      }
      continue;
    }
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kPieceBytes));
    if (written < 0 && errno != EINTR && errno != EAGAIN) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

StatusLine::StatusLine(int terminal_fd, bool forced)
    : fd_(terminal_fd), live_(forced || can_be_drawn_on(terminal_fd)) {}

StatusLine::~StatusLine() { close(); }

void StatusLine::update(const RunStatus& status) {
  if (!live_) {
    return;
  }
  {
    std::lock_guard lock(values_);
    status_ = status;
    dirty_ = true;
  }
  refresh();
}

void StatusLine::refresh() {
  if (!live_) {
    return;
  }
  // If another thread is writing (and perhaps waiting for the terminal), it will draw when it is done.
  if (std::unique_lock lock(output_, std::try_to_lock); lock.owns_lock()) {
    draw_if_due();
  }
}

bool StatusLine::print_above(std::string_view text, int fd, const std::atomic<bool>* give_up) {
  if (!live_) {
    std::lock_guard lock(output_);
    return write_console(fd, text, give_up);
  }
  std::lock_guard lock(output_);
  clear(give_up);
  const bool written = write_console(fd, text, give_up);
  draw_if_due();
  return written;
}

void StatusLine::close() {
  closed_ = true;
  if (std::unique_lock lock(output_, std::try_to_lock); lock.owns_lock()) {
    clear(&kAtOnce);
  }
}

// Needs output_. Draws if the line is due or was cleared; leaves it undrawn if the terminal is not ready.
void StatusLine::draw_if_due() {
  const int64_t now = monotonic_ns();
  if (closed_ || now - drawn_at_ns_ < kRedrawNs) {
    return;
  }
  std::string text;
  {
    std::lock_guard lock(values_);
    if (!status_ || (drawn_ && !dirty_)) {
      return;
    }
    dirty_ = false;
    text = format_status(*status_, columns_of(fd_) - 1);
  }
  drawn_at_ns_ = now;
  drawn_ = write_console(fd_, absl::StrFormat("%s%s", std::string(kClear), text), &kAtOnce);
}

// Needs output_.
void StatusLine::clear(const std::atomic<bool>* give_up) {
  if (drawn_) {
    write_console(fd_, kClear, give_up);
    drawn_ = false;
  }
}

}  // namespace keepstep::observe
