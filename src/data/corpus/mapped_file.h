// A file mapped for reading. If it disappears under us, nothing crashes.
//
// All processes of a node that map a file share one copy of it, the kernel's page cache. The price: a page that cannot
// be read (somebody truncated the file, the disk or the network file system failed) is not an error of a call but a
// SIGBUS in the process that touches it. A handler, installed with the first mapping, puts a page of zeros there, marks
// the file lost and lets the reader go on; the reader calls `lost` before it uses what it read. A SIGBUS outside all
// mappings goes to the previous handler (faulthandler's, for example).
//
// Limits: 1,024 mappings per process. A handler that somebody installs later is in effect until the next mapping. Any
// thread may read and query; open and close are serialized by an internal lock.
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

  // NOT_FOUND and other system errors name the path; INVALID_ARGUMENT: not a regular file; RESOURCE_EXHAUSTED: too many
  // mappings. An empty file maps to no bytes.
  static StatusOr<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Whether some page could not be read so far: zeros were read in its place.
  bool lost() const;
  // OK, or DATA_LOSS naming the file and what may have happened to it.
  Status check() const;

  // Tells the kernel that [begin, begin + bytes) will be read soon (MADV_WILLNEED); it reads the range in the
  // background.
  void will_need(uint64_t begin, uint64_t bytes) const;
  // Reads the range and maps its pages into this process, so that no later access waits or faults (MADV_POPULATE_READ).
  // Returns when the pages are there or cannot be read; in the latter case the reader finds out. False: this kernel
  // (before 5.14) cannot do it.
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
