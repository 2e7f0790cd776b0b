// Writes files completely, and so that they survive a power loss.
#pragma once

#include <fcntl.h>
#include <libgen.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "base/fd.h"
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

// Makes what was written to `fd` durable. `path` is for the message.
inline Status make_durable(const Fd& fd, const std::string& path) {
  return fsync(fd.get()) == 0 ? absl::OkStatus() : errno_status(absl::StrFormat("make '%s' durable", path));
}

// The folder of the file at `path`, which need not exist.
inline std::string folder_of(std::string path) { return dirname(path.data()); }

// Makes the names in the folder of the file at `path` durable, its own among them.
inline Status make_folder_durable(const std::string& path) {
  const Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.valid() && fsync(folder.get()) == 0
             ? absl::OkStatus()
             : errno_status(absl::StrFormat("make the folder of '%s' durable", path));
}

}  // namespace keepstep::data
