// The system calls behind DiskStore: errors that say what to do, folders and files that survive a power loss, and
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

// The error for "`what` '`path`'" that failed with errno `error`: the code that object_store.h assigns to it, and what
// to do.
Status disk_error(std::string_view what, const std::string& path, int error);

// Creates `path` and its missing parents; all that it creates is durable.
Status make_folders(const std::string& path);
// Makes the names in the folder of the file at `path` durable.
Status sync_folder_of(const std::string& path);

Status write_whole(int fd, std::span<const std::byte> bytes, const std::string& path);

// A file that does not have its name yet. Without `give_name` nothing of it remains.
class PartialFile {
 public:
  // `root`: the store's, created if missing. `path`: where the file will go, for messages.
  static StatusOr<PartialFile> create(const std::string& root, const std::string& path);

  PartialFile(PartialFile&& other) noexcept = default;
  PartialFile& operator=(PartialFile&&) = delete;
  ~PartialFile();

  int fd() const { return fd_.get(); }

  // fsync. After an error only the destructor may be called.
  Status make_durable();

  enum class Existing { kReplace, kKeep };
  // Gives the file its name, in a folder that is created if need be, and fsyncs that folder. Call make_durable first.
  // With kKeep, ALREADY_EXISTS if the name is taken.
  Status give_name(Existing existing);

 private:
  PartialFile(Fd fd, std::string partial, std::string path)
      : fd_(std::move(fd)), partial_(std::move(partial)), path_(std::move(path)) {}

  Fd fd_;
  std::string partial_;
  std::string path_;
};

// Removes files of dead writers of this machine, and others not written to for `older_than`. Returns how many.
StatusOr<uint64_t> remove_partial_files(const std::string& root, std::chrono::seconds older_than);

// The store's lock for puts, held for the lifetime of the result. CANCELLED if `interrupted` becomes true while it
// waits, UNIMPLEMENTED where files cannot be locked.
StatusOr<Fd> lock_for_puts(const std::string& root, const std::atomic<bool>& interrupted);

}  // namespace keepstep::checkpoint
