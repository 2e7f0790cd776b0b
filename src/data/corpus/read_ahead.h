// Pages of mapped files that are read before somebody needs them, by a thread that waits for the disk in its place.
//
// Who knows what it will read (the order of samples is known for ever) asks early. The thread first tells the kernel
// about all pieces of a request, so that the disk gets them at once and in its own order, then waits for one after the
// other and maps their pages into the process: a reader that comes later neither waits nor faults. Pieces that are in
// memory already cost two system calls each, on the thread. So while requests find that nothing has to be read it
// rests: it takes every second one, then every fourth, ... every 64th, until one finds something or a reader had to
// wait
// (`wake`).
//
// One for each process (`of_process`), started by the first request; a forked child gets its own. It blocks all
// signals, and never ends: a request for files that nobody uses any more does no harm, as it holds them. Any thread may
// call.
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
  // Requests that wait; a disk that cannot keep up must not make the queue grow. The oldest are dropped: their samples
  // are needed first, so their readers are there already.
  static constexpr size_t kMaxRequests = 256;

  struct Counters {
    uint64_t bytes = 0;    // asked for and done
    uint64_t read = 0;     // requests for which something had to be read
    uint64_t dropped = 0;  // requests
    uint64_t rested = 0;   // requests that were not looked at
  };

  static ReadAhead& of_process();

  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Whether the next request may be left out; counts it. Ask before the pieces are put together.
  bool rests();
  // A reader waited for the disk: no more rest.
  void wake();
  void ask(std::vector<FilePiece> pieces);
  // Until all that was asked for is done or dropped.
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

// How often the calling thread waited for a page to come from a disk, since it began (major page faults).
uint64_t page_faults_waited_for();

}  // namespace keepstep::data
