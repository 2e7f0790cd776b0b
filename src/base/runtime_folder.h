// Names of this user's processes on this machine: files in a folder that nobody else can enter.
//
// The folder is the first of these that can be used: $XDG_RUNTIME_DIR/keepstep, /run/user/UID/keepstep (where systemd
// keeps what the variable usually names, for shells without it), /tmp/keepstep-UID. Each must be a folder of this user,
// closed to others; so must what is above the first two. A process that looks for a name looks in all of them.
//
// Each name is held by one process, by a lock (flock) on the file NAME+lock-BOOT. The kernel takes the lock away with
// the process, whatever ends it. A socket of that name is the file NAME, others are NAME+WHAT. They go with the name:
// its process removes them in the end; if it was killed, the next one that takes or looks for a name does. Files are
// made and removed, and locks looked at, under a lock on the folder, so a name that is just being made is not taken for
// a dead one. BOOT is a hash of the kernel's boot id: the folder may be shared by machines whose kernels do not see
// each other's locks, so each looks at its own only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

// A name that this process holds. Movable.
class HeldName {
 public:
  HeldName() = default;
  // ALREADY_EXISTS: another process holds it. PERMISSION_DENIED: no folder can be used; the message says why, and what
  // to do. INVALID_ARGUMENT: not 1 to 100 bytes without '/' and '+'.
  static StatusOr<HeldName> take(const std::string& name);
  HeldName(HeldName&&) noexcept = default;
  HeldName& operator=(HeldName&& other) noexcept;
  ~HeldName();  // removes its files

  // Where a socket of this name may listen.
  const std::string& path() const { return path_; }
  bool held() const { return lock_.valid(); }
  // Whether others still find it: false once somebody has removed its files. systemd does that to all in
  // /run/user/UID when the user's last session ends, while processes may go on.
  bool found() const;

 private:
  void let_go();
  std::string path_;
  Fd folder_;
  Fd lock_;
};

// The folders in which names may be, the one for new ones first if it is there.
std::vector<std::string> runtime_folders();

// The paths of all names that begin with `prefix` and that a process holds.
std::vector<std::string> names_held(std::string_view prefix);

// Stands for one machine in a name, since folders may be shared by several: a hash of the kernel's boot id and of the
// network namespace, as each of these has ports of its own.
std::string this_machine();

}  // namespace keepstep
