#include "agent/watch/health.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/memory_available.h"

namespace keepstep::agent {
namespace {

constexpr size_t kWrittenBytes = 4096;

std::string mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (uint64_t{1} << 20));
}

int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Returns an empty string if 4 KiB reached the disk of `folder`, else what failed. The file has a name only for a
// moment, and a unique one: nodes may share a folder and, in containers, process ids.
std::string write_and_remove(const std::string& folder) {
  std::string error;
  const auto failed = [&](const char* what) {
    error = error.empty() ? absl::StrFormat("%s: %s", what, strerror(errno)) : error;
  };
  std::array<char, kWrittenBytes> data;
  data.fill('k');
  std::string path = folder + "/.keepstep-health-XXXXXX";
  const Fd file(mkostemp(path.data(), O_CLOEXEC));
  if (!file.valid()) {
    failed("open");
    return error;
  }
  if (unlink(path.c_str()) != 0) {
    failed("remove");
  }
  if (write(file.get(), data.data(), data.size()) != static_cast<ssize_t>(data.size())) {
    failed("write");
  }
  if (fsync(file.get()) != 0) {
    failed("fsync");
  }
  return error;
}

}  // namespace

std::vector<HealthFinding> judge_health(const HealthReading& now, const std::optional<HealthReading>& before,
                                        const HealthLimits& limits) {
  std::vector<HealthFinding> findings;
  if (now.memory_available_bytes < limits.memory_bytes) {
    findings.push_back(
        {"memory", mebibytes(now.memory_available_bytes) + " available", mebibytes(limits.memory_bytes)});
  }
  for (const FolderReading& folder : now.folders) {
    const std::string check = "disk " + folder.path;
    if (!folder.error.empty()) {
      findings.push_back({check, folder.error, "4 KiB can be written"});
    } else if (folder.free_bytes < limits.disk_bytes) {
      findings.push_back({check, mebibytes(folder.free_bytes) + " free", mebibytes(limits.disk_bytes)});
    } else if (folder.write_s > limits.write_s) {
      findings.push_back({check, absl::StrFormat("%.1f s for 4 KiB with fsync", folder.write_s),
                          absl::StrFormat("%g s", limits.write_s)});
    }
  }
  if (!now.gpu_error.empty()) {
    findings.push_back({"gpu driver", now.gpu_error, "an answer"});
  }
  for (const rank::GpuFinding& gpu : rank::judge_gpus(now.gpus)) {
    findings.push_back({gpu.check, gpu.measured, gpu.limit});
  }
  if (before.has_value()) {
    if (now.monotonic_ns < before->monotonic_ns) {
      findings.push_back({"clock", "CLOCK_MONOTONIC went back", "it never does"});
    }
    const double jump_s =
        static_cast<double>((now.wall_ns - before->wall_ns) - (now.monotonic_ns - before->monotonic_ns)) * 1e-9;
    if (std::abs(jump_s) > limits.clock_jump_s) {
      findings.push_back({"clock", absl::StrFormat("the wall clock jumped by %+.1f s", jump_s),
                          absl::StrFormat("%g s", limits.clock_jump_s)});
    }
  }
  return findings;
}

HealthReading measure_health(const std::vector<std::string>& folders) {
  HealthReading reading;
  reading.memory_available_bytes = memory_available();
  for (const std::string& path : folders) {
    FolderReading folder{.path = path};
    const int64_t begun_ns = monotonic_ns();
    folder.error = write_and_remove(path);
    folder.write_s = static_cast<double>(monotonic_ns() - begun_ns) * 1e-9;
    struct statvfs space{};
    if (statvfs(path.c_str(), &space) == 0) {
      folder.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
    }
    reading.folders.push_back(std::move(folder));
  }
  auto gpus = rank::read_gpus();
  if (gpus.ok()) {
    reading.gpus = *std::move(gpus);
  } else if (!absl::IsNotFound(gpus.status())) {
    reading.gpu_error = std::string(gpus.status().message());
  }
  reading.monotonic_ns = monotonic_ns();
  reading.wall_ns = wall_ns();
  return reading;
}

struct HealthWatch::Shared {
  std::mutex mutex;
  std::condition_variable stopped;
  bool stop = false;
  int64_t measuring_since_ns = 0;
  std::function<void(HealthReading)> report;
};

HealthWatch::HealthWatch(std::vector<std::string> folders, double interval_s, std::function<void(HealthReading)> report)
    : shared_(std::make_shared<Shared>()) {
  shared_->report = std::move(report);
  // Detached: joining a thread whose write hangs would hang the end of the job.
  std::thread([shared = shared_, folders = std::move(folders), interval_s] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), "health");
    std::unique_lock lock(shared->mutex);
    while (!shared->stop) {
      shared->measuring_since_ns = monotonic_ns();
      lock.unlock();
      HealthReading reading = measure_health(folders);
      lock.lock();
      shared->measuring_since_ns = 0;
      if (shared->stop) {
        return;
      }
      shared->report(std::move(reading));
      shared->stopped.wait_for(lock, std::chrono::duration<double>(interval_s), [&] { return shared->stop; });
    }
  }).detach();
}

HealthWatch::~HealthWatch() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    shared_->report = nullptr;
  }
  shared_->stopped.notify_all();
}

int64_t HealthWatch::measuring_since_ns() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->measuring_since_ns;
}

}  // namespace keepstep::agent
