#include "data/corpus/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/fd.h"

namespace keepstep::data {
namespace {

constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ; not in every C library's headers

// What the handler reads: only atomics. A slot with `end` 0 is free.
struct Slot {
  std::atomic<uintptr_t> begin;
  std::atomic<uintptr_t> end;
  std::atomic<bool> lost;
};
Slot slots[MappedFile::kMaxMappings];
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

std::mutex mutex;         // guards what follows, and taking or freeing a slot
struct sigaction before;  // this and page_mask are written before the handler is installed
uintptr_t page_mask;
std::atomic<bool> passing_on{false};

// Async-signal-safe: uses only atomics, mmap and sigaction.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (address < end && address >= slot.begin.load(std::memory_order_relaxed)) {
      const int kept = errno;
      slot.lost.store(true);
      void* page = mmap(static_cast<std::byte*>(info->si_addr) - (address & ~page_mask), ~page_mask + 1, PROT_READ,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      errno = kept;
      if (page != MAP_FAILED) {
        return;
      }
      break;
    }
  }
  const bool again = passing_on.exchange(true);  // an older handler may pass the signal back to us
  if (!again && (before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
    passing_on = false;
  } else if (!again && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
    passing_on = false;
  } else {
    struct sigaction end = {};  // the default action: the instruction runs again and ends the process
    end.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &end, nullptr);
  }
}

// Installs it again if somebody has replaced the handler since the last mapping.
Status install() {
  page_mask = ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) != 0) {
    return errno_status("read the handler of SIGBUS");
  }
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error) {
    return absl::OkStatus();
  }
  before = now;
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  if (sigaction(SIGBUS, &ours, nullptr) != 0) {
    return errno_status("install a handler of SIGBUS");
  }
  return absl::OkStatus();
}

StatusOr<int> take_slot(const std::byte* data, size_t size) {
  std::lock_guard lock(mutex);
  KEEPSTEP_RETURN_IF_ERROR(install());
  for (size_t i = 0; i < MappedFile::kMaxMappings; ++i) {
    if (slots[i].end.load() == 0) {
      slots[i].lost = false;
      slots[i].begin = reinterpret_cast<uintptr_t>(data);
      slots[i].end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_release);
      return static_cast<int>(i);
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d files are mapped already; merge some of them", MappedFile::kMaxMappings));
}

}  // namespace

StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno_status(absl::StrFormat("open '%s'", path));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return errno_status(absl::StrFormat("read the size of '%s'", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is no regular file and cannot be mapped", path));
  }
  MappedFile file;
  file.path_ = path;
  if (info.st_size == 0) {
    return file;
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return errno_status(absl::StrFormat("map the %d bytes of '%s'", size, path));
  }
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  KEEPSTEP_ASSIGN_OR_RETURN(file.slot_, take_slot(file.data_, size));
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      slot_(std::exchange(other.slot_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    slot_ = std::exchange(other.slot_, -1);
  }
  return *this;
}

MappedFile::~MappedFile() { close(); }

void MappedFile::close() {
  if (data_ == nullptr) {
    return;
  }
  if (slot_ >= 0) {
    std::lock_guard lock(mutex);
    slots[slot_].end.store(0);  // before somebody else can get the address
  }
  munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

bool MappedFile::lost() const { return slot_ >= 0 && slots[slot_].lost; }

Status MappedFile::check() const {
  if (!lost()) {
    return absl::OkStatus();
  }
  struct stat info;
  const bool there = stat(path_.c_str(), &info) == 0;
  const std::string now = there ? absl::StrFormat("it has %d bytes now", info.st_size) : "it is not there any more";
  return absl::DataLossError(
      absl::StrFormat("'%s' had %d bytes when it was opened and could not be read to its end since (%s): was it "
                      "truncated or rewritten, or is its disk failing? Do not change a corpus while a job reads it",
                      path_, size_, now));
}

bool MappedFile::advise(uint64_t begin, uint64_t bytes, int advice) const {
  if (begin >= size_) {
    return true;
  }
  const uint64_t into_page = reinterpret_cast<uintptr_t>(data_ + begin) & ~page_mask;
  auto* first = const_cast<std::byte*>(data_) + begin - into_page;
  return madvise(first, into_page + std::min<uint64_t>(bytes, size_ - begin), advice) == 0 || errno != EINVAL;
}

void MappedFile::will_need(uint64_t begin, uint64_t bytes) const { (void)advise(begin, bytes, MADV_WILLNEED); }

bool MappedFile::populate(uint64_t begin, uint64_t bytes) const { return advise(begin, bytes, kPopulateRead); }

}  // namespace keepstep::data
