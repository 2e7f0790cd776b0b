#include "agent/workers/start_process.h"

#include <spawn.h>

#include <csignal>
#include <cstring>

extern char** environ;

namespace keepstep::agent {

StatusOr<pid_t> start_process(const std::vector<std::string>& argv, const std::vector<std::pair<int, int>>& inherit,
                              const std::vector<std::string>& extra_environment, const std::vector<int>& blocked) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const auto& [from, to] : inherit) {
    posix_spawn_file_actions_adddup2(&actions, from, to);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : blocked) {
    sigaddset(&mask, signal);
  }
  posix_spawnattr_setsigmask(&attributes, &mask);  // the agent blocks signals it reads from a signalfd
  posix_spawnattr_setpgroup(&attributes, 0);       // the launcher handles Ctrl-C in the terminal
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (const std::string& entry : extra_environment) {
    environment.push_back(const_cast<char*>(entry.c_str()));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& mine : extra_environment) {
      replaced |= mine.starts_with(name);
    }
    if (!replaced) {
      environment.push_back(*entry);
    }
  }
  environment.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return absl::InternalError(absl::StrFormat("start %s: %s", argv[0], strerror(error)));
  }
  return pid;
}

}  // namespace keepstep::agent
