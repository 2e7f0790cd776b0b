#include "observe/journal.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/engine_thread.h"
#include "base/fd.h"
#include "base/log.h"

namespace keepstep::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kFullDiskPause{100};
constexpr size_t kMaxQueuedBytes = size_t{64} << 20;  // of lines not yet written to disk

double seconds(int64_t ns) {
  const int64_t us = ns / 1000;
  return static_cast<double>(us) * 1e-6;
}

// To the microsecond, so that lines stay short: a double prints as its shortest exact decimal.
double to_microseconds(double value) { return std::round(value * 1e6) / 1e6; }

// JSON has no NaN and no infinity: they become the strings "nan", "inf" and "-inf".
Json number(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  return std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf");
}

Json to_json(const brain::Field::second_type& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
          return number(v);
        } else {
          return v;
        }
      },
      value);
}

std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

void say_once(std::string_view why) {
  static std::once_flag said;
  std::call_once(
      said, [why] { spdlog::error("a journal line could not be written ({}); lines are missing from here on", why); });
}

// Uses one write(2) for the whole line, unless the disk is full. Returns 0 or errno; with an error, `line` is what
// remains.
int append(int fd, std::string_view& line) {
  while (!line.empty()) {
    const ssize_t written = ::write(fd, line.data(), line.size());
    if (written >= 0) {
      line.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

StatusOr<Fd> create_new(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (fd.valid()) {
    return fd;
  }
  if (errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "'%s' is the journal of an earlier run and is never overwritten. Give --journal a new directory, or remove it.",
        path.string()));
  }
  return errno_status(absl::StrFormat("create the journal '%s'", path.string()));
}

}  // namespace

// The files, and the lines on their way to them.
struct Journal::Writer {
  Fd journal;
  Fd metrics;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<int, std::string>> queue = {};  // file and line
  size_t queued_bytes = 0;
  bool writing = false;
  bool stopping = false;

  void put(const Fd& file, std::string line) {
    {
      const std::lock_guard lock(mutex);
      if (queued_bytes + line.size() > kMaxQueuedBytes) {
        return say_once("the disk takes none");
      }
      queued_bytes += line.size();
      queue.emplace_back(file.get(), std::move(line));
    }
    changed.notify_all();
  }

  bool idle() const { return queue.empty() && !writing; }

  // If the disk is full, tries again until it has room or the journal ends. Meanwhile further lines wait in the queue.
  void write(int fd, std::string_view line) {
    int error = append(fd, line);
    while (error == ENOSPC || error == EDQUOT) {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kFullDiskPause, [this] { return stopping; })) {
        break;
      }
      lock.unlock();
      error = append(fd, line);
    }
    if (error != 0) {
      say_once(strerror(error));
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) {
        return;
      }
      const auto lines = std::exchange(queue, {});
      queued_bytes = 0;
      writing = true;
      lock.unlock();
      for (const auto& [fd, line] : lines) {
        write(fd, line);
      }
      lock.lock();
      writing = false;
      changed.notify_all();
    }
  }
};

std::string journal_file(const std::string& kind, uint32_t node) {
  return node == 0 ? kind + ".jsonl" : absl::StrFormat("%s.node%d.jsonl", kind, node);
}

StatusOr<std::unique_ptr<Journal>> Journal::open(const std::string& dir, uint32_t node) {
  std::unique_ptr<Journal> journal(new Journal(node));
  if (dir.empty()) {
    return journal;
  }
  const std::filesystem::path path(dir);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return errno_status(absl::StrFormat("create the journal's directory '%s'", dir), error.value());
  }
  const auto writer = std::make_shared<Writer>();
  KEEPSTEP_ASSIGN_OR_RETURN(writer->journal, create_new(path / journal_file("journal", node)));
  KEEPSTEP_ASSIGN_OR_RETURN(writer->metrics, create_new(path / journal_file("metrics", node)));
  journal->writer_ = writer;
  journal->thread_ = start_engine_thread("ks-journal", [writer] { writer->run(); });
  return journal;
}

Journal::Journal(uint32_t node) : node_(node), started_ns_(monotonic_ns()) {}

Journal::~Journal() {
  if (!thread_.joinable()) {
    return;
  }
  const bool flushed = flush(kGoodbye);
  {
    const std::lock_guard lock(writer_->mutex);
    writer_->stopping = true;
  }
  writer_->changed.notify_all();
  if (flushed) {
    thread_.join();
  } else {
    say_once("the disk did not take it in time");
    thread_.detach();  // the kernel ends it with the process
  }
}

bool Journal::flush(std::chrono::milliseconds limit) {
  if (writer_ == nullptr) {
    return true;
  }
  std::unique_lock lock(writer_->mutex);
  return writer_->changed.wait_for(lock, limit, [this] { return writer_->idle(); });
}

double Journal::now_s() const { return seconds(monotonic_ns() - started_ns_); }

void Journal::write(const std::string& event, brain::Identity identity, const std::string& because,
                    const std::vector<brain::Field>& fields) {
  if (writer_ == nullptr) {
    return;
  }
  const int64_t now = monotonic_ns();
  Json line;
  line["t"] = seconds(now - started_ns_);
  line["mono"] = seconds(now);
  line["wall"] = to_microseconds(wall_seconds());
  line["event"] = event;
  line["term"] = identity.term;
  line["generation"] = identity.generation;
  line["node"] = node_;
  for (const auto& [name, value] : fields) {
    line[name] = to_json(value);
  }
  if (!because.empty()) {
    line["because"] = because;
  }
  writer_->put(writer_->journal, line_of(line));
}

void Journal::metrics(brain::Step step, const std::string& json_members) {
  if (writer_ == nullptr) {
    return;
  }
  const int64_t now = monotonic_ns();
  Json line;
  line["step"] = step;
  line["t"] = seconds(now - started_ns_);
  line["mono"] = seconds(now);
  const Json members = Json::parse("{" + json_members + "}", nullptr, /*allow_exceptions=*/false);
  if (members.is_discarded()) {
    line["invalid"] = json_members;  // the line stays JSON, and the input is not lost
  } else {
    line.insert(members.begin(), members.end());  // keeps existing members: nothing replaces "step"
  }
  writer_->put(writer_->metrics, line_of(line));
}

}  // namespace keepstep::observe
