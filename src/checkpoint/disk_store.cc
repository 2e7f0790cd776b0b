#include "checkpoint/disk_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fd.h"
#include "checkpoint/disk_files.h"
#include "checkpoint/keys.h"

namespace keepstep::checkpoint {
namespace {

constexpr uint64_t kWriteBehindBytes = 8 << 20;  // the kernel starts writing early, so that fsync has little left to do

int64_t ns_of(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

std::string etag_of_content(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

// For a file too large to be read for its etag: stays the same as long as it is the same file with the same times.
std::string etag_of_file(const struct stat& found) {
  return absl::StrFormat("%x-%x-%x", found.st_ino, found.st_size, ns_of(found.st_mtim));
}

// Fills `into` from `offset` on; returns how many bytes there were.
StatusOr<size_t> read_at(int fd, uint64_t offset, std::span<std::byte> into, const std::string& path,
                         const std::atomic<bool>& interrupted_flag) {
  constexpr size_t kMaxAtOnce = 16 << 20;
  size_t done = 0;
  while (done < into.size()) {
    if (interrupted_flag) {
      return interrupted(path);
    }
    const ssize_t got =
        pread(fd, into.data() + done, std::min(into.size() - done, kMaxAtOnce), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return disk_error("read", path, errno);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

struct OpenFile {
  Fd fd;
  struct stat found{};
  uint64_t bytes() const { return static_cast<uint64_t>(found.st_size); }
};

// NOT_FOUND also if a part of the path is a file, or the key is a folder.
StatusOr<OpenFile> open_file(const std::string& path, std::string_view key, const std::string& store) {
  OpenFile file;
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.fd.valid()) {
    return errno == ENOENT || errno == ENOTDIR ? no_such_object(key, store) : disk_error("open", path, errno);
  }
  if (fstat(file.fd.get(), &file.found) != 0) {
    return disk_error("look at", path, errno);
  }
  if (!S_ISREG(file.found.st_mode)) {
    return no_such_object(key, store);
  }
  return file;
}

StatusOr<std::string> etag_of(const OpenFile& file, const std::string& path,
                              const std::atomic<bool>& interrupted_flag) {
  if (file.bytes() > DiskStore::kHashedBytes) {
    return etag_of_file(file.found);
  }
  std::string bytes(file.bytes(), '\0');
  KEEPSTEP_ASSIGN_OR_RETURN(
      const size_t got, read_at(file.fd.get(), 0, std::as_writable_bytes(std::span(bytes)), path, interrupted_flag));
  return etag_of_content(std::string_view(bytes).substr(0, got));
}

StatusOr<ObjectInfo> info_of(const std::string& path, std::string_view key, const std::string& store,
                             const std::atomic<bool>& interrupted_flag) {
  KEEPSTEP_ASSIGN_OR_RETURN(const OpenFile file, open_file(path, key, store));
  KEEPSTEP_ASSIGN_OR_RETURN(std::string etag, etag_of(file, path, interrupted_flag));
  return ObjectInfo{std::string(key), file.bytes(), std::move(etag), ns_of(file.found.st_mtim)};
}

class DiskWriter final : public ObjectWriter {
 public:
  DiskWriter(PartialFile file, std::string path, const std::atomic<bool>& interrupted_flag)
      : file_(std::move(file)), path_(std::move(path)), interrupted_(interrupted_flag) {}

  Status append(std::span<const std::byte> bytes) override {
    KEEPSTEP_RETURN_IF_ERROR(state_);
    state_ = write(bytes);
    return state_;
  }

  StatusOr<std::string> commit() override {
    KEEPSTEP_RETURN_IF_ERROR(state_);
    state_ = absl::FailedPreconditionError(absl::StrFormat("'%s' has been committed", path_));
    struct stat found{};
    // Returns reserved space that was not used.
    if (ftruncate(file_.fd(), static_cast<off_t>(written_)) != 0) {
      return disk_error("end", path_, errno);
    }
    KEEPSTEP_RETURN_IF_ERROR(file_.make_durable());
    if (fstat(file_.fd(), &found) != 0) {
      return disk_error("look at", path_, errno);
    }
    std::string etag = etag_of_file(found);
    if (written_ <= DiskStore::kHashedBytes) {
      std::string bytes(written_, '\0');
      KEEPSTEP_ASSIGN_OR_RETURN(const size_t got,
                                read_at(file_.fd(), 0, std::as_writable_bytes(std::span(bytes)), path_, interrupted_));
      etag = etag_of_content(std::string_view(bytes).substr(0, got));
    }
    KEEPSTEP_RETURN_IF_ERROR(file_.give_name(PartialFile::Existing::kReplace));
    return etag;
  }

 private:
  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (interrupted_) {
        return interrupted(path_);
      }
      const std::span<const std::byte> next = bytes.first(std::min<size_t>(bytes.size(), kWriteBehindBytes));
      KEEPSTEP_RETURN_IF_ERROR(write_whole(file_.fd(), next, path_));
      written_ += next.size();
      bytes = bytes.subspan(next.size());
      if (written_ - begun_ >= kWriteBehindBytes) {
        (void)sync_file_range(file_.fd(), static_cast<off_t>(begun_), static_cast<off_t>(written_ - begun_),
                              SYNC_FILE_RANGE_WRITE);  // if this fails, fsync does it all
        begun_ = written_;
      }
    }
    return absl::OkStatus();
  }

  PartialFile file_;
  std::string path_;
  const std::atomic<bool>& interrupted_;
  Status state_;
  uint64_t written_ = 0;
  uint64_t begun_ = 0;  // the kernel was told to write everything before this
};

struct Folder {
  Folder(const Folder&) = delete;
  explicit Folder(const std::string& path) : stream(opendir(path.c_str())) {}
  ~Folder() {
    if (stream != nullptr) {
      closedir(stream);
    }
  }
  DIR* stream;
};

enum class Kind { kFile, kFolder, kOther };

// A link to a file is treated as that file; one to a folder is not followed: it may lead in circles.
Kind kind_of(const dirent& entry, const std::string& path, struct stat* found) {
  if (entry.d_type == DT_DIR) {
    return Kind::kFolder;
  }
  if (lstat(path.c_str(), found) == 0 && S_ISDIR(found->st_mode)) {
    return Kind::kFolder;
  }
  return stat(path.c_str(), found) == 0 && S_ISREG(found->st_mode) ? Kind::kFile : Kind::kOther;
}

// Calls visit(name, path, kind, stat of a file) for each entry of `path`. A missing folder is treated as empty.
template <typename Visit>
Status each_entry(const std::string& path, const Visit& visit) {
  const Folder folder(path);
  if (folder.stream == nullptr) {
    return errno == ENOENT || errno == ENOTDIR ? absl::OkStatus() : disk_error("list", path, errno);
  }
  while (true) {
    errno = 0;
    const dirent* entry = readdir(folder.stream);
    if (entry == nullptr) {
      return errno == 0 ? absl::OkStatus() : disk_error("list", path, errno);
    }
    const std::string_view name = entry->d_name;
    if (name == "." || name == ".." || name.starts_with(".keepstep-")) {
      continue;
    }
    const std::string inner = absl::StrFormat("%s/%s", path, name);
    struct stat found{};
    KEEPSTEP_RETURN_IF_ERROR(visit(name, inner, kind_of(*entry, inner, &found), found));
  }
}

Status list_below(const std::string& path, const std::string& key, std::string_view begun, const std::string& store,
                  const std::atomic<bool>& interrupted_flag, std::vector<ObjectInfo>* listed) {
  return each_entry(path, [&](std::string_view name, const std::string& inner, Kind kind, const struct stat& found) {
    if (interrupted_flag) {
      return interrupted(store);
    }
    if (!name.starts_with(begun) || kind == Kind::kOther) {
      return absl::OkStatus();
    }
    const std::string inner_key = absl::StrFormat("%s%s", key, name);
    if (kind == Kind::kFolder) {
      return list_below(inner, inner_key + "/", "", store, interrupted_flag, listed);
    }
    if (!check_key(inner_key).ok()) {
      return absl::OkStatus();  // no store wrote it, and nobody could ask for it
    }
    if (listed->size() >= kMaxListed) {
      return too_many_listed(key, store);
    }
    listed->push_back({inner_key, static_cast<uint64_t>(found.st_size), "", ns_of(found.st_mtim)});
    return absl::OkStatus();
  });
}

}  // namespace

DiskStore::DiskStore(std::string folder) : root_(std::move(folder)) {}

std::string DiskStore::path_of(std::string_view key) const { return absl::StrFormat("%s/%s", root_, key); }

Status DiskStore::check_alive() const { return interrupted_ ? interrupted(describe()) : absl::OkStatus(); }

std::string DiskStore::describe() const { return "file://" + root_; }

StatusOr<std::string> DiskStore::put(std::string_view key, std::span<const std::byte> bytes,
                                     const PutCondition& condition) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  KEEPSTEP_RETURN_IF_ERROR(check_alive());
  if (bytes.size() > kMaxPutBytes) {
    return too_large_for_put(key, bytes.size());
  }
  const std::string path = path_of(key);
  KEEPSTEP_ASSIGN_OR_RETURN(PartialFile file, PartialFile::create(root_, path));
  KEEPSTEP_RETURN_IF_ERROR(write_whole(file.fd(), bytes, path));
  KEEPSTEP_RETURN_IF_ERROR(file.make_durable());  // before taking the lock: others wait for it
  std::string etag = etag_of_content({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (bytes.size() > kHashedBytes) {
    struct stat found{};
    if (fstat(file.fd(), &found) != 0) {
      return disk_error("look at", path, errno);
    }
    etag = etag_of_file(found);
  }
  const StatusOr<Fd> lock = lock_for_puts(root_, interrupted_);
  if (!lock.ok() && !absl::IsUnimplemented(lock.status())) {
    return lock.status();
  }
  if (condition.kind == PutCondition::Kind::kMatches) {
    if (!lock.ok()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "'%s' cannot be replaced safely beside other writers: %s. Use a file system with locks (NFS: not "
          "'nolock'; Lustre: 'flock'), or S3",
          path, lock.status().message()));
    }
    const StatusOr<ObjectInfo> there = info_of(path, key, describe(), interrupted_);
    if (!there.ok() || there->etag != condition.etag) {
      return condition_failed(key, condition, there, describe());
    }
  }
  const Status named = file.give_name(condition.kind == PutCondition::Kind::kAbsent ? PartialFile::Existing::kKeep
                                                                                    : PartialFile::Existing::kReplace);
  if (absl::IsAlreadyExists(named)) {
    struct stat found{};
    const bool there = stat(path.c_str(), &found) == 0;
    return condition_failed(
        key, condition,
        there ? absl::StrFormat("one of %d bytes, of %s", found.st_size, time_text(ns_of(found.st_mtim)))
              : std::string("one that is just being removed"),
        describe());
  }
  KEEPSTEP_RETURN_IF_ERROR(named);
  return etag;
}

StatusOr<std::unique_ptr<ObjectWriter>> DiskStore::create(std::string_view key, uint64_t expected_bytes) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  KEEPSTEP_RETURN_IF_ERROR(check_alive());
  const std::string path = path_of(key);
  KEEPSTEP_ASSIGN_OR_RETURN(PartialFile file, PartialFile::create(root_, path));
  if (expected_bytes > 0 && fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(expected_bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EIO)) {  // otherwise: a file system that cannot reserve
    return disk_error(absl::StrFormat("reserve %d MiB for", expected_bytes >> 20), path, errno);
  }
  return std::make_unique<DiskWriter>(std::move(file), path, interrupted_);
}

Status DiskStore::read(std::string_view key, uint64_t offset, std::span<std::byte> into) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  const std::string path = path_of(key);
  KEEPSTEP_ASSIGN_OR_RETURN(const OpenFile file, open_file(path, key, describe()));
  if (offset > file.bytes() || into.size() > file.bytes() - offset) {
    return beyond_end(key, file.bytes(), offset, into.size(), describe());
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const size_t got, read_at(file.fd.get(), offset, into, path, interrupted_));
  return got == into.size() ? absl::OkStatus() : beyond_end(key, offset + got, offset, into.size(), describe());
}

StatusOr<Object> DiskStore::read_all(std::string_view key, uint64_t max_bytes) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  const std::string path = path_of(key);
  KEEPSTEP_ASSIGN_OR_RETURN(const OpenFile file, open_file(path, key, describe()));
  max_bytes = std::min(max_bytes, kMaxReadAllBytes);
  if (file.bytes() > max_bytes) {
    return too_large_to_read(key, file.bytes(), max_bytes, describe());
  }
  Object object;
  object.bytes.resize(file.bytes());
  KEEPSTEP_ASSIGN_OR_RETURN(
      const size_t got, read_at(file.fd.get(), 0, std::as_writable_bytes(std::span(object.bytes)), path, interrupted_));
  if (got != object.bytes.size()) {
    return beyond_end(key, got, 0, object.bytes.size(), describe());
  }
  object.etag = object.bytes.size() <= kHashedBytes ? etag_of_content(object.bytes) : etag_of_file(file.found);
  return object;
}

StatusOr<ObjectInfo> DiskStore::head(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  return info_of(path_of(key), key, describe(), interrupted_);
}

StatusOr<std::vector<ObjectInfo>> DiskStore::list(std::string_view prefix) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));
  const size_t slash = prefix.rfind('/');
  const std::string folder = slash == std::string_view::npos ? "" : std::string(prefix.substr(0, slash + 1));
  const std::string_view begun = prefix.substr(folder.size());
  std::vector<ObjectInfo> listed;
  const std::string path = folder.empty() ? root_ : path_of(folder.substr(0, folder.size() - 1));
  KEEPSTEP_RETURN_IF_ERROR(list_below(path, folder, begun, describe(), interrupted_, &listed));
  std::sort(listed.begin(), listed.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; });
  return listed;
}

StatusOr<std::vector<std::string>> DiskStore::list_folders(std::string_view folder) {
  if (!folder.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(check_key(folder));
  }
  std::vector<std::string> names;
  KEEPSTEP_RETURN_IF_ERROR(
      each_entry(folder.empty() ? root_ : path_of(folder),
                 [&](std::string_view name, const std::string& /*path*/, Kind kind, const struct stat& /*found*/) {
                   if (kind == Kind::kFolder && check_key(name).ok()) {
                     if (names.size() >= kMaxListed) {
                       return too_many_listed(folder, describe());
                     }
                     names.emplace_back(name);
                   }
                   return absl::OkStatus();
                 }));
  std::sort(names.begin(), names.end());
  return names;
}

Status DiskStore::remove(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  KEEPSTEP_RETURN_IF_ERROR(check_alive());
  std::string path = path_of(key);
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? absl::OkStatus() : disk_error("look at", path, errno);
  }
  if (S_ISDIR(found.st_mode)) {
    return absl::OkStatus();  // no object has this key
  }
  const StatusOr<Fd> lock = lock_for_puts(root_, interrupted_);
  if (!lock.ok() && !absl::IsUnimplemented(lock.status())) {
    return lock.status();
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return disk_error("remove", path, errno);
  }
  if (const Status synced = sync_folder_of(path); !synced.ok() && !absl::IsNotFound(synced)) {
    return synced;  // if the folder is gone with everything in it, the goal is reached
  }
  // A folder exists only while a key has it in its name.
  while (true) {
    path.resize(path.rfind('/'));
    if (path.size() <= root_.size() || rmdir(path.c_str()) != 0) {
      return absl::OkStatus();
    }
  }
}

StatusOr<uint64_t> DiskStore::remove_leftovers(std::string_view prefix, std::chrono::seconds older_than) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));  // temporary files are not stored by prefix: all are examined
  KEEPSTEP_RETURN_IF_ERROR(check_alive());
  return remove_partial_files(root_, older_than);
}

}  // namespace keepstep::checkpoint
