// A folder for the temporary files of this node's workers, with one folder inside for each. It also removes what a
// killed worker cannot remove itself. Python's multiprocessing, which data loaders use, puts its sockets there
// (worker.py).
//
// Only its content is ever removed, and links are not followed. A lock on a file inside distinguishes a folder in use
// from one whose launcher was killed; the next launcher to create a folder removes the latter, if it belongs to this
// machine. Loop thread only.
#pragma once

#include <filesystem>

#include "base/fd.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::agent {

class TempFolder {
 public:
  // A new folder, accessible to this user only, in the directory for temporary files (TMPDIR).
  static StatusOr<TempFolder> create();
  // Without a folder: path() is empty.
  TempFolder() = default;
  TempFolder(TempFolder&& other) noexcept;
  TempFolder& operator=(TempFolder&& other) noexcept;
  ~TempFolder();  // removes it with everything inside

  const std::filesystem::path& path() const { return path_; }
  // Removes the worker's folder, path()/worker, which the worker creates.
  void remove(brain::WorkerId worker) const;
  void remove_all();

 private:
  std::filesystem::path path_;
  Fd lock_;
};

}  // namespace keepstep::agent
