#include "agent/workers/output_pump.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/workers/output_sink.h"
#include "base/log.h"
#include "base/terminal_text.h"

namespace keepstep::agent {
namespace {

constexpr size_t kBufferBytes = 64 * 1024;
constexpr int kPipeBytes = 256 * 1024;
constexpr size_t kMaxRestReads = 64;  // from a pipe that somebody keeps filling

StatusOr<std::pair<Fd, Fd>> make_pipe(const std::string& name) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no pipe for the output of %s: %s (raise the limit on open files with `ulimit -n`?)", name, strerror(errno)));
  }
  Fd read(ends[0]);
  Fd write(ends[1]);
  (void)fcntl(read.get(), F_SETPIPE_SZ, kPipeBytes);  // as large as the system allows
  (void)fcntl(read.get(), F_SETFL, O_NONBLOCK);       // our end only: each end has its own flags
  return std::pair(std::move(read), std::move(write));
}

}  // namespace

// `mutex` guards the maps and flags; streams and sinks belong to the thread, which holds no lock while it writes.
struct OutputPump::Impl {
  struct Stream {
    Fd pipe;
    std::string pending;  // the beginning of a line, at most kBufferBytes
    bool ended = false;
  };
  struct Worker {
    Worker(OutputSink s, brain::WorkerId i) : id(i), sink(std::move(s)) {}
    brain::WorkerId id;
    std::array<Stream, 2> streams;  // stdout, stderr
    OutputSink sink;
    int open_streams = 2;  // under mutex
  };
  using WorkerPtr = std::shared_ptr<Worker>;

  Impl(const JobSpec& job, observe::StatusLine* line, int out, int err) : spec(job), console(line, out, err) {}

  void loop();
  void run_commands();
  void on_readable(const WorkerPtr& worker, size_t which);
  enum class Read { kSome, kNothing, kEnd };
  Read read_once(Worker& worker, size_t which);
  void take_lines(Worker& worker, size_t which);
  void read_rest(Worker& worker, size_t which);
  void end_stream(const WorkerPtr& worker, size_t which);
  void let_go(const WorkerPtr& worker);
  void command(std::function<void()> what);

  JobSpec spec;
  Console console;
  Watcher watcher;  // set before there is anything to read
  Fd epoll;
  Fd wake;
  std::mutex mutex;
  std::condition_variable ended;
  std::map<brain::WorkerId, WorkerPtr> workers;
  std::vector<std::function<void()>> commands;  // for the thread, in order
  bool finished = false;
  std::atomic<bool> stop{false};
  std::thread thread;
};

void OutputPump::Impl::command(std::function<void()> what) {
  {
    std::lock_guard lock(mutex);
    commands.push_back(std::move(what));
  }
  eventfd_write(wake.get(), 1);
}

void OutputPump::Impl::loop() {
  // A closed console should be an error of write(2), not the end of the launcher.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "output");
  std::array<epoll_event, 32> events;
  while (!stop) {
    const int count = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[static_cast<size_t>(i)].data.u64;
      if (key == 0) {
        run_commands();
        continue;
      }
      WorkerPtr worker;
      {
        std::lock_guard lock(mutex);
        const auto found = workers.find(static_cast<brain::WorkerId>((key - 1) / 2));
        worker = found == workers.end() ? nullptr : found->second;
      }
      if (worker != nullptr) {
        on_readable(worker, (key - 1) % 2);
      }
    }
  }
}

void OutputPump::Impl::run_commands() {
  eventfd_t count = 0;
  eventfd_read(wake.get(), &count);
  std::vector<std::function<void()>> todo;
  {
    std::lock_guard lock(mutex);
    todo.swap(commands);
  }
  for (const auto& what : todo) {
    what();
  }
}

void OutputPump::Impl::on_readable(const WorkerPtr& worker, size_t which) {
  if (!worker->streams[which].ended && read_once(*worker, which) == Read::kEnd) {
    end_stream(worker, which);
  }
}

// One read(2); then its whole lines are written.
OutputPump::Impl::Read OutputPump::Impl::read_once(Worker& worker, size_t which) {
  Stream& stream = worker.streams[which];
  const size_t before = stream.pending.size();
  stream.pending.resize(kBufferBytes);
  const ssize_t got = ::read(stream.pipe.get(), stream.pending.data() + before, kBufferBytes - before);
  const int error = errno;
  stream.pending.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0) {
    take_lines(worker, which);
    return Read::kSome;
  }
  return got < 0 && (error == EAGAIN || error == EINTR) ? Read::kNothing : Read::kEnd;
}

void OutputPump::Impl::take_lines(Worker& worker, size_t which) {
  std::string& pending = worker.streams[which].pending;
  size_t whole = pending.rfind('\n');
  whole = whole == std::string::npos ? 0 : whole + 1;
  if (whole == 0 && pending.size() >= kBufferBytes) {
    whole = pending.size();
  }
  if (whole > 0) {
    if (watcher) {
      watcher(worker.id, std::string_view(pending).substr(0, whole));
    }
    worker.sink.write(which, std::string_view(pending).substr(0, whole));
    pending.erase(0, whole);
  }
}

// Reads what is in the pipe now; epoll reports its end.
void OutputPump::Impl::read_rest(Worker& worker, size_t which) {
  if (worker.streams[which].ended) {
    return;
  }
  for (size_t reads = 0; reads < kMaxRestReads && read_once(worker, which) == Read::kSome; ++reads) {
  }
}

void OutputPump::Impl::end_stream(const WorkerPtr& worker, size_t which) {
  Stream& stream = worker->streams[which];
  if (!stream.pending.empty()) {
    if (watcher) {
      watcher(worker->id, stream.pending);
    }
    worker->sink.write_last(which, stream.pending);
    stream.pending.clear();
  }
  epoll_ctl(epoll.get(), EPOLL_CTL_DEL, stream.pipe.get(), nullptr);
  stream.pipe.reset();
  stream.ended = true;
  worker->sink.close(which);
  std::lock_guard lock(mutex);
  if (--worker->open_streams == 0) {
    workers.erase(worker->id);
    ended.notify_all();
  }
}

void OutputPump::Impl::let_go(const WorkerPtr& worker) {
  for (size_t which : {0, 1}) {
    if (!worker->streams[which].ended) {
      read_rest(*worker, which);
      end_stream(worker, which);
    }
  }
}

std::string log_folder(const JobSpec& spec, uint32_t rank, uint32_t generation) {
  if (spec.log_dir.empty() || spec.log_dir == "/dev/null") {
    return "";
  }
  return absl::StrFormat("%s/%s/attempt_%d/%d", spec.log_dir, spec.run_id, generation, rank);
}

OutputPump::OutputPump(const JobSpec& spec, observe::StatusLine* status_line, int console_out, int console_err)
    : impl_(std::make_unique<Impl>(spec, status_line, console_out, console_err)) {
  impl_->epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  impl_->wake.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!impl_->epoll.valid() || !impl_->wake.valid() ||
      epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, impl_->wake.get(), &event) != 0) {
    impl_->finished = true;  // out of descriptors: open() reports it
    return;
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

OutputPump::~OutputPump() { finish(); }

StatusOr<std::pair<Fd, Fd>> OutputPump::open(brain::WorkerId worker, const std::string& name,
                                             std::optional<uint32_t> rank, uint32_t generation) {
  KEEPSTEP_ASSIGN_OR_RETURN(auto out, make_pipe(name));
  KEEPSTEP_ASSIGN_OR_RETURN(auto err, make_pipe(name));
  auto entry = std::make_shared<Impl::Worker>(OutputSink(impl_->spec, impl_->console, worker, name), worker);
  if (rank) {
    entry->sink.assign(*rank, generation);
  }
  entry->streams[0].pipe = std::move(out.first);
  entry->streams[1].pipe = std::move(err.first);
  std::lock_guard lock(impl_->mutex);
  if (impl_->finished) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "no output of %s can be taken: the job is ending, or there were no descriptors for it at the start", name));
  }
  if (!impl_->workers.emplace(worker, entry).second) {
    return absl::AlreadyExistsError(absl::StrFormat("worker %d (%s) has its output pipes already", worker, name));
  }
  for (uint64_t which : {0, 1}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = uint64_t{worker} * 2 + which + 1}};
    if (epoll_ctl(impl_->epoll.get(), EPOLL_CTL_ADD, entry->streams[which].pipe.get(), &event) != 0) {
      impl_->workers.erase(worker);
      return errno_status(absl::StrFormat("watch the output of %s", name));
    }
  }
  impl_->commands.push_back([entry] { entry->sink.make_folder(); });
  eventfd_write(impl_->wake.get(), 1);
  return std::pair(std::move(out.second), std::move(err.second));
}

void OutputPump::watch(Watcher watcher) { impl_->watcher = std::move(watcher); }

void OutputPump::say(const std::string& line) {
  impl_->command([impl = impl_.get(), line = terminal_text(line) + "\n"] { impl->console.write(1, line); });
}

void OutputPump::assign(brain::WorkerId worker, uint32_t rank, uint32_t generation) {
  impl_->command([impl = impl_.get(), worker, rank, generation] {
    Impl::WorkerPtr entry;
    {
      std::lock_guard lock(impl->mutex);
      const auto found = impl->workers.find(worker);
      if (found == impl->workers.end()) {
        return;
      }
      entry = found->second;
    }
    for (size_t which : {0, 1}) {
      impl->read_rest(*entry, which);
    }
    entry->sink.assign(rank, generation);
    entry->sink.make_folder();
  });
}

void OutputPump::flush(brain::WorkerId worker, int limit_ms) {
  std::unique_lock lock(impl_->mutex);
  const auto gone = [&] { return !impl_->workers.contains(worker); };
  if (impl_->ended.wait_for(lock, std::chrono::milliseconds(limit_ms), gone)) {
    return;
  }
  const Impl::WorkerPtr entry = impl_->workers.at(worker);
  lock.unlock();
  impl_->command([impl = impl_.get(), entry] { impl->let_go(entry); });
}

void OutputPump::finish(int limit_ms) {
  if (!impl_->thread.joinable()) {
    return;
  }
  {
    std::unique_lock lock(impl_->mutex);
    impl_->finished = true;
    impl_->ended.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] { return impl_->workers.empty(); });
  }
  impl_->console.give_up();
  impl_->command([impl = impl_.get()] {
    std::map<brain::WorkerId, Impl::WorkerPtr> left;
    {
      std::lock_guard lock(impl->mutex);
      left = impl->workers;
    }
    for (const auto& [id, entry] : left) {
      impl->let_go(entry);
    }
    impl->stop = true;
  });
  impl_->thread.join();
}

}  // namespace keepstep::agent
