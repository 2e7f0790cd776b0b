#include "agent/watch/stacks.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "agent/loop/timer.h"
#include "agent/workers/start_process.h"
#include "base/fd.h"

namespace keepstep::agent {
namespace {

constexpr size_t kMaxError = 4096;

// From /proc; '?' if there is no such process.
char state_of(pid_t pid) {
  std::ifstream file(absl::StrFormat("/proc/%d/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
}

struct Pipe {
  Fd read;
  Fd write;
};
StatusOr<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return errno_status("make a pipe for py-spy");
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

// py-spy's error, and what to do about it.
std::string explain(const std::string& said, pid_t pid) {
  std::string because = said.substr(0, std::min(kMaxError, said.find("Stack backtrace:")));
  absl::StripAsciiWhitespace(&because);
  std::replace(because.begin(), because.end(), '\n', ' ');
  const std::string lower = absl::AsciiStrToLower(because);
  if (lower.find("permission") != std::string::npos || lower.find("not permitted") != std::string::npos) {
    return absl::StrFormat(
        "process %d may not be read (ptrace): run as root, give the container CAP_SYS_PTRACE, or set "
        "kernel.yama.ptrace_scope to 0 or 1 (%s)",
        pid, because);
  }
  return because.empty() ? "py-spy ended without a word" : because;
}

// One call of take_stacks; lives until `done` was called.
class Taking : public std::enable_shared_from_this<Taking> {
 public:
  Taking(EventLoop& loop, std::string py_spy, const StackLimits& limits,
         std::function<void(std::vector<ProcessStacks>)> done)
      : loop_(loop), py_spy_(std::move(py_spy)), limits_(limits), done_(std::move(done)) {}

  void start(const std::vector<pid_t>& pids) {
    results_.resize(pids.size());
    for (size_t i = 0; i < pids.size(); ++i) {
      results_[i].pid = pids[i];
    }
    left_ = pids.size();
    if (left_ == 0) {
      finish();
      return;
    }
    go_on();
  }

 private:
  struct Child {
    size_t index;
    bool native;
    pid_t pid = 0;
    Fd pidfd, out, err;
    std::string said_out, said_err;
    bool out_ended = false, err_ended = false, exited = false, too_long = false;
    std::unique_ptr<Timer> limit;
  };

  void go_on() {
    while (running_ < limits_.at_once && next_ < results_.size()) {
      begin(next_++, limits_.native);
    }
  }

  void begin(size_t index, bool native) {
    ProcessStacks& result = results_[index];
    result.state = state_of(result.pid);
    // py-spy cannot stop a process that is already stopped, nor need it; but without stopping it reads no native
    // frames.
    const bool stopped = result.state == 'T';
    if (native && stopped) {
      native = false;
      result.note = "without native frames: it is stopped";
    }
    const auto child = std::make_shared<Child>(Child{index, native});
    ++running_;
    StatusOr<Pipe> out = make_pipe();
    StatusOr<Pipe> err = make_pipe();
    Status status = out.ok() ? err.status() : out.status();
    if (status.ok()) {
      std::vector<std::string> words = {py_spy_, "dump", "--json", "--pid", std::to_string(result.pid)};
      if (native) {
        words.emplace_back("--native");
      } else if (stopped) {
        words.emplace_back("--nonblocking");
      }
      const Fd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
      const StatusOr<pid_t> pid =
          start_process(words, {{nothing.get(), 0}, {out->write.get(), 1}, {err->write.get(), 2}}, {});
      status = pid.status();
      child->pid = pid.ok() ? *pid : 0;
    }
    if (!status.ok()) {
      result.error = std::string(status.message());
      end(*child);
      return;
    }
    child->out = std::move(out->read);
    child->err = std::move(err->read);
    child->pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, child->pid, 0)));
    const auto self = shared_from_this();
    (void)loop_.watch(child->out.get(), [self, child] {
      self->read_from(child, child->out, child->said_out, child->out_ended, self->limits_.bytes);
    });
    (void)loop_.watch(child->err.get(), [self, child] {
      self->read_from(child, child->err, child->said_err, child->err_ended, kMaxError);
    });
    (void)loop_.watch(child->pidfd.get(), [self, child] {
      self->loop_.unwatch(child->pidfd.get());
      waitpid(child->pid, nullptr, 0);
      child->exited = true;
      self->check(child);
    });
    // Native frames may take half the time; the other half is for a try without them.
    auto limit = Timer::after(loop_, limits_.native ? limits_.time / 2 : limits_.time, [self, child] {
      child->too_long = true;
      if (!child->exited) {
        kill(child->pid, SIGKILL);
      }
    });
    if (limit.ok()) {
      child->limit = *std::move(limit);
    }
  }

  void read_from(const std::shared_ptr<Child>& child, Fd& fd, std::string& said, bool& ended, size_t most) {
    char buffer[64 * 1024];
    const ssize_t count = read(fd.get(), buffer, sizeof buffer);
    if (count > 0) {
      said.append(buffer, std::min<size_t>(count, most + 1 - std::min(said.size(), most + 1)));
      return;
    }
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    loop_.unwatch(fd.get());
    ended = true;
    check(child);
  }

  void check(const std::shared_ptr<Child>& child) {
    if (!child->out_ended || !child->err_ended || !child->exited) {
      return;
    }
    child->limit.reset();
    ProcessStacks& result = results_[child->index];
    if (child->too_long && result.state != 'T' && state_of(result.pid) == 'T') {
      kill(result.pid, SIGCONT);  // py-spy may have been killed while it held the process
    }
    auto threads =
        child->said_out.size() > limits_.bytes
            ? absl::ResourceExhaustedError(absl::StrFormat("its stacks take more than %d bytes", limits_.bytes))
            : parse_stacks(child->said_out, result.pid);
    if (threads.ok()) {
      result.threads = *std::move(threads);
      result.error.clear();
    } else {
      const std::string because = child->too_long               ? absl::StrFormat("py-spy took more than %g s",
                                                                                  std::chrono::duration<double>(limits_.time).count())
                                  : state_of(result.pid) == '?' ? "the process has ended"
                                  : child->said_out.empty()     ? explain(child->said_err, result.pid)
                                                                : std::string(threads.status().message());
      if (child->native) {
        result.note = "without native frames: " + because;
        --running_;
        begin(child->index, false);
        return;
      }
      result.error = because;
    }
    end(*child);
  }

  void end(const Child& /*child*/) {
    --running_;
    if (--left_ == 0) {
      finish();
    } else {
      go_on();
    }
  }

  void finish() {
    // Deferred: a caller may not expect the answer before its call returns.
    loop_.post([self = shared_from_this()] { self->done_(std::move(self->results_)); });
  }

  EventLoop& loop_;
  const std::string py_spy_;
  const StackLimits limits_;
  std::function<void(std::vector<ProcessStacks>)> done_;
  std::vector<ProcessStacks> results_;
  size_t next_ = 0;
  size_t running_ = 0;
  size_t left_ = 0;
};

}  // namespace

StatusOr<std::string> find_py_spy(const std::string& python) {
  namespace fs = std::filesystem;
  const auto runs = [](const fs::path& path) { return access(path.c_str(), X_OK) == 0; };
  if (const char* given = std::getenv("KEEPSTEP_PY_SPY"); given != nullptr && *given != '\0') {
    if (runs(given)) {
      return std::string(given);
    }
    return absl::NotFoundError(
        absl::StrFormat("the environment variable KEEPSTEP_PY_SPY is '%s', which is no program", given));
  }
  const fs::path beside = fs::path(python).parent_path() / "py-spy";
  if (runs(beside)) {
    return beside.string();
  }
  const char* path = std::getenv("PATH");
  for (const std::string& folder :
       std::vector<std::string>(absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty()))) {
    if (const fs::path candidate = fs::path(folder) / "py-spy"; runs(candidate)) {
      return candidate.string();
    }
  }
  return absl::NotFoundError(absl::StrFormat(
      "stacks are read by py-spy, which is neither at %s nor in PATH; install it with: %s -m pip install py-spy",
      beside.string(), python));
}

void take_stacks(EventLoop& loop, const std::string& py_spy, const std::vector<pid_t>& pids, const StackLimits& limits,
                 std::function<void(std::vector<ProcessStacks>)> done) {
  std::make_shared<Taking>(loop, py_spy, limits, std::move(done))->start(pids);
}

}  // namespace keepstep::agent
