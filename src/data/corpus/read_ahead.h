// A thread that reads pages of mapped files before a reader needs them, and waits for the disk in its place.
//
// A reader that knows what it will read (the order of samples is fixed) asks early. The thread first tells the kernel
// about all pieces of a request, so that the disk gets them at once and can order them. Then it waits for each in turn
// and maps its pages into the process: a reader that comes later neither waits nor faults. A piece that is already in
// memory still costs two system calls, on the thread. So while requests find nothing to read, the thread rests: it
// takes every second one, then every fourth, ... every 64th, until one finds something or a reader had to wait
// (`wake`).
//
// One per process (`of_process`), started by the first request; a forked child gets its own. It blocks all signals and
// never ends: a request for files that nobody uses any longer does no harm, as it holds them. Any thread may call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "data/corpus/mapped_file.h"

namespace keepstep::data {

struct FilePiece {
  std::shared_ptr<const MappedFile> file;
  uint64_t begin = 0;  // bytes
  uint64_t bytes = 0;
};

class ReadAhead {
 public:
  // Pending requests; a disk that cannot keep up must not make the queue grow. The oldest are dropped: their samples
  // are needed first, so their readers have already arrived.
  static constexpr size_t kMaxRequests = 256;

  struct Counters {
    uint64_t bytes = 0;    // of requests that are done
    uint64_t read = 0;     // requests for which something had to be read
    uint64_t dropped = 0;  // requests
    uint64_t rested = 0;   // requests that were skipped
  };

  static ReadAhead& of_process();

  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Whether the next request may be skipped; counts it. Call before you collect the pieces.
  bool rests();
  // A reader waited for the disk: end the rest.
  void wake();
  void ask(std::vector<FilePiece> pieces);
  // Waits until every request is done or dropped.
  void wait();
  Counters counters();

 private:
  ReadAhead() = default;
  void start();
  void run();

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool started_ = false;
  bool busy_ = false;
  std::deque<std::vector<FilePiece>> requests_;
  uint64_t rest_ = 0;  // requests to leave out
  uint64_t next_rest_ = 1;
  Counters counters_;
};

// How often the calling thread has waited for a page from disk since it began (major page faults).
uint64_t page_faults_waited_for();

}  // namespace keepstep::data
