// A folder for the temporary files of this node's workers, one folder inside for each: what a killed worker cannot
// remove itself goes with it. Python's multiprocessing, which loaders use, puts its sockets there (worker.py).
//
// Only what lies inside is ever removed, and links are not followed. A lock on a file inside tells a living folder from
// one whose launcher was killed: the next one that is made removes that, if it is of this machine. Loop thread only.
#pragma once

#include <filesystem>

#include "base/fd.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::agent {

class TempFolder {
 public:
  // A new folder, for this user alone, in the one for temporary files (TMPDIR).
  static StatusOr<TempFolder> create();
  // Without a folder: path() is empty.
  TempFolder() = default;
  TempFolder(TempFolder&& other) noexcept;
  TempFolder& operator=(TempFolder&& other) noexcept;
  ~TempFolder();  // removes it with everything inside

  const std::filesystem::path& path() const { return path_; }
  // The worker's folder; the worker makes it, path()/worker.
  void remove(brain::WorkerId worker) const;
  void remove_all();

 private:
  std::filesystem::path path_;
  Fd lock_;
};

}  // namespace keepstep::agent
