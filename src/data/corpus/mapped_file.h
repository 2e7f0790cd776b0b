// A file that is mapped for reading and can be taken away under us without a crash.
//
// All processes of a node that map a file share one copy of it, the kernel's page cache. The price: a page that cannot
// be had (somebody truncated the file, the disk or the network file system failed) is not an error of a call but a
// SIGBUS in whoever touches it. A handler, installed with the first mapping, puts a page of zeros there, marks the file
// lost and lets the reader go on; who reads asks `lost` afterwards, before it uses what it read. Signals that are no
// mapping's go to the handler that was there before (faulthandler's, say).
//
// Limits: 1,024 mappings a process. A handler that somebody installs later counts until the next mapping. Any thread
// may read and ask; open and close are serialized by a lock of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace keepstep::data {

class MappedFile {
 public:
  static constexpr size_t kMaxMappings = 1024;

  // NOT_FOUND and other errors of the system name the path; INVALID_ARGUMENT: no regular file; RESOURCE_EXHAUSTED: too
  // many mappings. An empty file is mapped to no bytes.
  static StatusOr<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Whether a page could not be had so far: then zeros were read in its place.
  bool lost() const;
  // OK, or DATA_LOSS that names the file and what may have happened to it.
  Status check() const;

  // Tells the kernel that [begin, begin + bytes) will be read soon (MADV_WILLNEED); it reads them in the background.
  void will_need(uint64_t begin, uint64_t bytes) const;
  // Reads them and maps their pages into this process, so that no later access waits or faults (MADV_POPULATE_READ).
  // Returns when they are there, or cannot be had: who reads them finds out. False: this kernel (before 5.14) cannot.
  bool populate(uint64_t begin, uint64_t bytes) const;

 private:
  bool advise(uint64_t begin, uint64_t bytes, int advice) const;
  void close();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;  // in the handler's table
};

}  // namespace keepstep::data
