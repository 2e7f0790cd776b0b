#include "agent/watch/preflight.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_format.h"
#include "base/fd.h"
#include "base/memory_available.h"
#include "observe/journal.h"

namespace keepstep::agent {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kMaxOpenFiles = 65536;   // the job's programs inherit it, and some loop up to the limit
constexpr uint64_t kFilesOfTheAgent = 128;  // connections, logs, journal, the zygote
constexpr uint64_t kFilesPerWorker = 16;    // pipes, socket, pidfd, pages, a listener; twice while it is replaced
constexpr uint64_t kShmErrorBytes = kMiB;
constexpr uint64_t kShmWarningBytes = 64 * kMiB;

std::string mebibytes(uint64_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / kMiB); }

uint64_t open_files_now() {
  std::error_code error;
  const auto entries = fs::directory_iterator("/proc/self/fd", error);
  return error ? 32 : static_cast<uint64_t>(std::distance(fs::begin(entries), fs::end(entries)));
}

void check_directory(const std::string& dir, const char* option, std::vector<std::string>& errors) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    errors.push_back(absl::StrFormat("%s '%s' cannot be made: %s; give another directory", option,
                                     fs::absolute(dir).string(), error.message()));
  } else if (access(dir.c_str(), W_OK | X_OK) != 0) {
    errors.push_back(absl::StrFormat("%s '%s' cannot be written: %s; give another directory", option,
                                     fs::absolute(dir).string(), strerror(errno)));
  }
}

void check_journal(const JobSpec& spec, std::vector<std::string>& errors) {
  const std::string& dir = spec.journal_dir;
  check_directory(dir, "--journal", errors);
  std::error_code ignored;
  for (const std::string& name :
       {observe::journal_file("journal", spec.node_rank), observe::journal_file("metrics", spec.node_rank)}) {
    if (const fs::path file = fs::path(dir) / name; fs::exists(file, ignored)) {
      errors.push_back(
          absl::StrFormat("--journal '%s' holds the %s of an earlier run, which is never overwritten; give "
                          "another directory or remove the file",
                          fs::absolute(dir).string(), name));
      return;
    }
  }
}

void check_master_port(const JobSpec& spec, std::vector<std::string>& errors) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const std::string port = std::to_string(spec.master_port);
  if (const int error = getaddrinfo(spec.master_addr.c_str(), port.c_str(), &hints, &list); error != 0) {
    errors.push_back(absl::StrFormat("--master-addr '%s' cannot be resolved: %s; on one machine 127.0.0.1 is right",
                                     spec.master_addr, gai_strerror(error)));
    return;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const Fd fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (fd.valid() && bind(fd.get(), list->ai_addr, list->ai_addrlen) == 0 && listen(fd.get(), 1) == 0) {
    return;
  }
  switch (errno) {
    case EADDRINUSE:
      errors.push_back(
          absl::StrFormat("--master-port %d is in use on %s; stop what listens there (ss -ltnp), give "
                          "another port, or leave the option out to get a free one",
                          spec.master_port, spec.master_addr));
      return;
    case EADDRNOTAVAIL:
      errors.push_back(
          absl::StrFormat("--master-addr '%s' is no address of this machine; on one machine 127.0.0.1 is "
                          "right",
                          spec.master_addr));
      return;
    default:
      errors.push_back(absl::StrFormat("--master-port %d on %s cannot be listened on: %s", spec.master_port,
                                       spec.master_addr, strerror(errno)));
  }
}

void check_program(const JobSpec& spec, std::vector<std::string>& errors) {
  if (!spec.no_python && access(spec.python.c_str(), X_OK) != 0) {
    errors.push_back(absl::StrFormat("the Python interpreter '%s' cannot be started: %s; set KEEPSTEP_PYTHON to one",
                                     spec.python, strerror(errno)));
  }
  if (!spec.no_python && !spec.module && access(spec.script.c_str(), R_OK) != 0) {
    errors.push_back(
        absl::StrFormat("the script '%s' cannot be read: %s", fs::absolute(spec.script).string(), strerror(errno)));
  }
}

}  // namespace

uint64_t open_files_needed(const JobSpec& spec) {
  return kFilesOfTheAgent + kFilesPerWorker * (uint64_t{spec.nproc_per_node} + spec.spares);
}

Machine read_machine(uint64_t needed) {
  Machine machine;
  machine.open_files_used = open_files_now();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const uint64_t wanted = std::max({limit.rlim_cur, kMaxOpenFiles, machine.open_files_used + needed});
    const rlimit raised{std::min(limit.rlim_max, wanted), limit.rlim_max};
    if (limit.rlim_cur < raised.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
    machine.open_files_soft = limit.rlim_cur;
    machine.open_files_hard = limit.rlim_max;
  }
  machine.memory_available_bytes = memory_available();
  struct statvfs shm{};
  machine.has_dev_shm = statvfs("/dev/shm", &shm) == 0;
  machine.dev_shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  return machine;
}

PreflightReport check_open_files(const JobSpec& spec, const Machine& machine) {
  PreflightReport report;
  const uint64_t files = machine.open_files_used + open_files_needed(spec);
  if (files > machine.open_files_soft) {
    report.errors.push_back(
        absl::StrFormat("%d ranks and %d spares need %d open files and the limit is %d; raise it with `ulimit -n %d` "
                        "(%s), or use fewer "
                        "ranks and spares",
                        spec.nproc_per_node, spec.spares, files, machine.open_files_soft, files,
                        machine.open_files_hard < files
                            ? absl::StrFormat("the hard limit, %d, is root's to raise", machine.open_files_hard)
                            : "the hard limit allows it"));
  }
  return report;
}

PreflightReport check_memory(const JobSpec& spec, const Machine& machine, uint64_t shared_bytes) {
  PreflightReport report;
  if (shared_bytes > machine.memory_available_bytes) {
    report.errors.push_back(absl::StrFormat(
        "the shared memory of %d ranks and %d spares takes %s and %s are free (for this process and its memory "
        "cgroup); "
        "free memory, or use fewer ranks and spares",
        spec.nproc_per_node, spec.spares, mebibytes(shared_bytes), mebibytes(machine.memory_available_bytes)));
  } else if (shared_bytes > machine.memory_available_bytes / 2) {
    report.warnings.push_back(
        absl::StrFormat("shared memory takes %s of the %s that are free; the ranks' own memory "
                        "comes on top",
                        mebibytes(shared_bytes), mebibytes(machine.memory_available_bytes)));
  }
  return report;
}

PreflightReport check_dev_shm(const Machine& machine) {
  PreflightReport report;
  constexpr const char* kShmHelp =
      "DataLoader workers of torch pass their batches through it (keepstep itself does not use it); remove old files "
      "there, or enlarge it: mount -o remount,size=1G /dev/shm, or docker run --shm-size=1g";
  if (!machine.has_dev_shm) {
    report.warnings.push_back(absl::StrFormat("/dev/shm is not there. %s", kShmHelp));
  } else if (machine.dev_shm_free_bytes < kShmErrorBytes) {
    report.errors.push_back(
        absl::StrFormat("/dev/shm is full: %s are free. %s", mebibytes(machine.dev_shm_free_bytes), kShmHelp));
  } else if (machine.dev_shm_free_bytes < kShmWarningBytes) {
    report.warnings.push_back(
        absl::StrFormat("/dev/shm has only %s free. %s", mebibytes(machine.dev_shm_free_bytes), kShmHelp));
  }
  return report;
}

PreflightReport check_machine(const JobSpec& spec, const Machine& machine, uint64_t shared_bytes) {
  PreflightReport all;
  for (const PreflightReport& part :
       {check_open_files(spec, machine), check_memory(spec, machine, shared_bytes), check_dev_shm(machine)}) {
    all.errors.insert(all.errors.end(), part.errors.begin(), part.errors.end());
    all.warnings.insert(all.warnings.end(), part.warnings.begin(), part.warnings.end());
  }
  return all;
}

PreflightReport preflight(const JobSpec& spec, uint64_t shared_bytes) {
  PreflightReport report = check_machine(spec, read_machine(open_files_needed(spec)), shared_bytes);
  check_program(spec, report.errors);
  if (spec.master_port != 0 && !spec.several_nodes()) {  // with several nodes it is on the node of rank 0
    check_master_port(spec, report.errors);
  }
  if (!spec.log_dir.empty() && spec.log_dir != "/dev/null") {
    check_directory(spec.log_dir, "--log-dir", report.errors);
  }
  if (!spec.journal_dir.empty()) {
    check_journal(spec, report.errors);
  }
  return report;
}

}  // namespace keepstep::agent
