#include "data/corpus/read_ahead.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>
#include <utility>

namespace keepstep::data {
namespace {

std::atomic<ReadAhead*> current;

// In a child of fork() the thread is gone and the mutex in an unknown state: abandon both.
void forget_in_child() { current.store(nullptr); }

constexpr uint64_t kLongestRest = 63;

// Reads from disk that this thread caused or waited for so far. Reads that it started are counted on the file systems
// that account for them (block devices and NFS), even if they finished before it looked; elsewhere it waits for some.
uint64_t reads_so_far() {
  struct rusage used = {};
  (void)getrusage(RUSAGE_THREAD, &used);
  return static_cast<uint64_t>(used.ru_inblock + used.ru_majflt);
}

}  // namespace

uint64_t page_faults_waited_for() {
  struct rusage used = {};
  (void)getrusage(RUSAGE_THREAD, &used);
  return static_cast<uint64_t>(used.ru_majflt);
}

ReadAhead& ReadAhead::of_process() {
  ReadAhead* found = current.load(std::memory_order_acquire);
  if (found != nullptr) {
    return *found;
  }
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  auto* made = new ReadAhead;  // lives as long as the process: its thread never ends
  if (current.compare_exchange_strong(found, made)) {
    return *made;
  }
  delete made;  // another thread was faster
  return *found;
}

bool ReadAhead::rests() {
  std::lock_guard lock(mutex_);
  if (rest_ == 0) {
    return false;
  }
  --rest_;
  ++counters_.rested;
  return true;
}

void ReadAhead::wake() {
  std::lock_guard lock(mutex_);
  rest_ = 0;
  next_rest_ = 1;
}

void ReadAhead::ask(std::vector<FilePiece> pieces) {
  std::lock_guard lock(mutex_);
  if (!started_) {
    start();
  }
  if (requests_.size() == kMaxRequests) {
    requests_.pop_front();
    ++counters_.dropped;
  }
  requests_.push_back(std::move(pieces));
  changed_.notify_all();
}

void ReadAhead::start() {
  started_ = true;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);  // for pages that are gone: MappedFile's handler
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ReadAhead::run() {
  (void)pthread_setname_np(pthread_self(), "ks-read-ahead");
  bool populates = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !requests_.empty(); });
    std::vector<FilePiece> pieces = std::move(requests_.front());
    requests_.pop_front();
    busy_ = true;
    lock.unlock();
    const uint64_t before = reads_so_far();
    for (const FilePiece& piece : pieces) {
      piece.file->will_need(piece.begin, piece.bytes);
    }
    uint64_t bytes = 0;
    for (const FilePiece& piece : pieces) {
      populates = populates && piece.file->populate(piece.begin, piece.bytes);
      bytes += piece.bytes;
    }
    pieces.clear();  // may hold the last reference to a file
    lock.lock();
    busy_ = false;
    counters_.bytes += bytes;
    if (reads_so_far() != before) {
      ++counters_.read;
      rest_ = 0;
      next_rest_ = 1;
    } else {  // also while requests are pending: a fast requester would keep this thread busy for nothing
      rest_ = next_rest_;
      next_rest_ = std::min(2 * next_rest_ + 1, kLongestRest);
    }
    changed_.notify_all();
  }
}

void ReadAhead::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return requests_.empty() && !busy_; });
}

ReadAhead::Counters ReadAhead::counters() {
  std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace keepstep::data
