// Writing to a file until all of it is written.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "base/status.h"

namespace keepstep::data {

// `path` is for the message.
inline Status write_all(int fd, const std::byte* data, size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t written = write(fd, data, bytes);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return errno_status(absl::StrFormat("write '%s' (nothing is kept of it)", path));
    }
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace keepstep::data
