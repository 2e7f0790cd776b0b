// The record of all operations: each has a number, an outcome, and threads that wait for it. Any thread may call
// anything.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"

namespace keepstep::comm {

class Completions {
 public:
  OpId open();
  // Call once per operation. Wakes its waiters, and reports the operation if it is watched.
  void complete(OpId op, Outcome outcome, std::string error = {}, Rank source = 0, std::vector<Rank> missing = {});

  Completion test(OpId op) const;
  Completion wait(OpId op);
  Completion wait_for(OpId op, int64_t limit_ns);
  void wait_all();
  void forget(OpId op);

  // Call it before the operation that failed because of the link completes; the first message is kept.
  void note_broken_link(const std::string& what);
  std::string broken_link() const;

  void watch(OpId op);
  std::vector<Completion> next();
  void close();

 private:
  struct Record {
    Completion completion{.outcome = Outcome::kPending};
    bool watched = false;
  };
  std::shared_ptr<Record> find(OpId op) const;  // under mutex_

  mutable std::mutex mutex_;
  std::condition_variable completed_;  // an operation completed
  std::condition_variable reported_;   // ready_ or closed_ changed
  size_t waiting_ = 0;
  OpId last_ = 0;
  std::unordered_map<OpId, std::shared_ptr<Record>> records_;
  std::vector<Completion> ready_;
  std::string broken_link_;
  bool closed_ = false;
};

}  // namespace keepstep::comm
