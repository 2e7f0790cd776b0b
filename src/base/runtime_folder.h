// Names of this user's processes on this machine, as files in a folder that no other user can enter.
//
// The folder is the first usable one of $XDG_RUNTIME_DIR/keepstep, /run/user/UID/keepstep (systemd usually points the
// variable there, but some shells lack it) and /tmp/keepstep-UID. Each must belong to this user and be closed to
// others; so must the parents of the first two. A process that looks up a name searches all of them.
//
// One process holds each name, by a lock (flock) on the file NAME+lock-BOOT. The kernel releases the lock when the
// process ends, whatever the cause. The socket of a name is the file NAME; other files are NAME+WHAT. The holder
// removes them when it ends; if it was killed, the next process that takes or looks up a name does. Files are created
// and removed, and locks checked, under a lock on the folder, so a name that is just being created is not mistaken for
// a dead one. BOOT is a hash of the kernel's boot id: machines whose kernels do not see each other's locks may share
// the folder, so each considers only its own locks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

// A name held by this process. Movable.
class HeldName {
 public:
  HeldName() = default;
  // ALREADY_EXISTS: another process holds it. PERMISSION_DENIED: no folder is usable; the message says why and what to
  // do. INVALID_ARGUMENT: not 1 to 100 bytes, or it contains '/' or '+'.
  static StatusOr<HeldName> take(const std::string& name);
  HeldName(HeldName&&) noexcept = default;
  HeldName& operator=(HeldName&& other) noexcept;
  ~HeldName();  // removes its files

  // The path at which a socket of this name may listen.
  const std::string& path() const { return path_; }
  bool held() const { return lock_.valid(); }
  // Whether others can still find it: false once its files were removed. systemd removes everything in /run/user/UID
  // when the user's last session ends, while processes may keep running.
  bool found() const;

 private:
  void let_go();
  std::string path_;
  Fd folder_;
  Fd lock_;
};

// The folders that may contain names; the folder for new names comes first if it exists.
std::vector<std::string> runtime_folders();

// The paths of all names that begin with `prefix` and are held by a process.
std::vector<std::string> names_held(std::string_view prefix);

// Identifies this machine in a name, because several machines may share a folder: a hash of the kernel's boot id and
// the network namespace (each namespace has its own ports).
std::string this_machine();

}  // namespace keepstep
