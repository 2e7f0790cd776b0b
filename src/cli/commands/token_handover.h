// How the job token reaches the nodes that srun started: node 0 makes a random one and leaves it in a file, in a folder
// that all nodes share and only this user can open. The token does not depend on anything that others can read (job id,
// host names).
#pragma once

#include <chrono>
#include <csignal>
#include <string>

#include "base/status.h"
#include "base/token.h"

namespace keepstep::cli {

// A token left in a file, which is removed when this object is destroyed. Movable.
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

// Writes `token` to `path`, completely or not at all, readable by this user only (0600). Makes the folder (0700) if it
// is missing. PERMISSION_DENIED: others may write to the folder, or another user owns it; other errors are the
// system's.
StatusOr<LeftToken> leave_token(const std::string& path, const JobToken& token);

// Returns the token in `path`, once it exists. PERMISSION_DENIED: others have access to the file. DEADLINE_EXCEEDED
// after `timeout`: the message gives the path and the time waited. CANCELLED when one of `signals` (blocked by the
// caller) arrives; `got` is its number.
StatusOr<JobToken> await_token(const std::string& path, std::chrono::milliseconds timeout, const sigset_t& signals,
                               int& got);

}  // namespace keepstep::cli
