#include "cli/commands/requeue.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/fd.h"

extern char** environ;

namespace keepstep::cli {
namespace {

constexpr size_t kMaxOutput = 4096;

// A program's standard output and error. UNAVAILABLE: it could not be started, or it failed.
StatusOr<std::string> output_of(std::vector<std::string> argv) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return errno_status("make a pipe");
  }
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, writing.get(), 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> words;
  for (std::string& word : argv) {
    words.push_back(word.data());
  }
  words.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  writing.reset();
  if (error != 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", argv[0], strerror(error)));
  }
  std::string output;
  std::array<char, 512> piece{};
  for (ssize_t got = 0; (got = read(reading.get(), piece.data(), piece.size())) > 0 && output.size() < kMaxOutput;) {
    output.append(piece.data(), static_cast<size_t>(got));
  }
  absl::StripAsciiWhitespace(&output);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::UnavailableError(absl::StrFormat("`%s` failed: %s", absl::StrJoin(argv, " "), output));
  }
  return output;
}

}  // namespace

Status requeue_slurm_job(const std::string& job) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string state, output_of({"squeue", "-h", "-j", job, "-o", "%T"}));
  if (state != "RUNNING") {
    return absl::FailedPreconditionError(absl::StrFormat("Slurm says that it is %s", state.empty() ? "over" : state));
  }
  return output_of({"scontrol", "requeue", job}).status();
}

}  // namespace keepstep::cli
