// How the job token comes to the nodes that srun started: node 0 makes a random one and leaves it in a file, in a
// folder that all nodes share and only this user may open. Nothing that others can read (job id, host names) goes into
// it.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

#include "base/status.h"
#include "base/token.h"

namespace keepstep::cli {

// A token left in a file, which is removed with this value. Movable.
class LeftToken {
 public:
  LeftToken() = default;
  explicit LeftToken(std::string path) : path_(std::move(path)) {}
  LeftToken(LeftToken&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  LeftToken& operator=(LeftToken&& other) noexcept;
  ~LeftToken() { remove(); }
  void remove();  // idempotent

 private:
  std::string path_;
};

// Writes `token` to `path`, whole or not at all, for this user alone (0600). Makes the folder (0700) if it is missing.
// PERMISSION_DENIED: others may write to the folder, or it is not ours; other errors say what the system said.
StatusOr<LeftToken> leave_token(const std::string& path, const JobToken& token);

// The token in `path`, once it is there. PERMISSION_DENIED: the file is not this user's alone. DEADLINE_EXCEEDED after
// `timeout`, with where and how long it was looked for. CANCELLED when one of `signals` (blocked by the caller) comes;
// `got` is its number.
StatusOr<JobToken> await_token(const std::string& path, std::chrono::milliseconds timeout, const sigset_t& signals,
                               int& got);

}  // namespace keepstep::cli
