// The system calls behind DiskStore: errors that say what to do, folders and files that outlive a power loss, and
// temporary files that can be told from leftovers.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep::checkpoint {

inline constexpr std::string_view kPartialFolder = ".keepstep-partial";

// "`what` '`path`'" failed with errno `error`, with the code that object_store.h names for it and what to do.
Status disk_error(std::string_view what, const std::string& path, int error);

// Makes `path` and what is missing above it; all that was made is durable.
Status make_folders(const std::string& path);
// The names in the folder of the file at `path` are durable when this returns.
Status sync_folder_of(const std::string& path);

Status write_whole(int fd, std::span<const std::byte> bytes, const std::string& path);

// A file on its way to a name. Without `give_name` nothing is left of it.
class PartialFile {
 public:
  // `root`: of the store, made if it is missing. `path`: where the file shall go, for messages.
  static StatusOr<PartialFile> create(const std::string& root, const std::string& path);

  PartialFile(PartialFile&& other) noexcept = default;
  PartialFile& operator=(PartialFile&&) = delete;
  ~PartialFile();

  int fd() const { return fd_.get(); }

  // fsync. After an error nothing but the destructor.
  Status make_durable();

  enum class Existing { kReplace, kKeep };
  // The name, in a folder that is made if need be, and fsync of that folder. make_durable comes before. ALREADY_EXISTS
  // with kKeep when the name is taken.
  Status give_name(Existing existing);

 private:
  PartialFile(Fd fd, std::string partial, std::string path)
      : fd_(std::move(fd)), partial_(std::move(partial)), path_(std::move(path)) {}

  Fd fd_;
  std::string partial_;
  std::string path_;
};

// How many were removed: files of writers of this machine that died, and others not written to for `older_than`.
StatusOr<uint64_t> remove_partial_files(const std::string& root, std::chrono::seconds older_than);

// The store's lock for puts, until the end of its life. CANCELLED when `interrupted` becomes true while it waits,
// UNIMPLEMENTED where files cannot be locked.
StatusOr<Fd> lock_for_puts(const std::string& root, const std::atomic<bool>& interrupted);

}  // namespace keepstep::checkpoint
