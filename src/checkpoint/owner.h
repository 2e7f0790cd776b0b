// Who writes into a namespace of checkpoints: one job at a time, fenced.
//
// `owner.json` at its root holds a token, which only grows, and who has it. To claim is to replace it by a conditional
// write: exactly one of several wins. A job whose owner still lives refuses all others; one that has gone is taken over
// with the next token. Gone means: it let go; or it ran on this very machine and its process is no more; or it did not
// renew for longer than its lease; or it was the same job before (the same name, started again). The clock decides only
// about courtesy: every commit of a checkpoint renews by a conditional write first, so an owner that was taken over,
// rightly or not, finds out and writes no manifest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "checkpoint/object_store.h"

namespace keepstep::checkpoint {

inline constexpr const char* kOwnerName = "owner.json";

struct OwnerRecord {
  uint64_t token = 0;
  std::string claim;  // random: one claim, one text
  std::string job;    // of whom, in words; the same for all starts of one job. May be empty: a job without a name
  std::string host;
  int64_t pid = 0;
  std::string process;  // names the process beyond its number: boot, pid namespace, start time
  int64_t renewed_s = 0;
  int64_t lease_s = 0;
  bool released = false;
};

struct OwnerOptions {
  std::string job;
  std::chrono::seconds lease{60};
  bool renew_in_background = true;      // every third of the lease
  std::function<int64_t()> now_s = {};  // seconds since the epoch; the machine's clock unless given
};

class Owner {
 public:
  // ABORTED names the owner that lives. `store` must outlive it.
  static StatusOr<std::unique_ptr<Owner>> claim(std::shared_ptr<ObjectStore> store, const OwnerOptions& options);
  // Lets go of nothing by itself: an owner that just ends is found gone by others.
  ~Owner();

  uint64_t token() const { return record_.token; }

  // Still ours, at this moment: ABORTED names who took it; NOT_FOUND: somebody removed the record. Any thread.
  Status renew();

  // Others may claim at once. Best effort, once, at the end: a store that cannot be reached is interrupted after
  // `limit`, and is of no use afterwards.
  Status release(std::chrono::milliseconds limit = std::chrono::seconds(10));

 private:
  Owner(std::shared_ptr<ObjectStore> store, OwnerOptions options, OwnerRecord record, std::string etag);
  Status put(const OwnerRecord& record);  // with mutex_ held
  void renew_in_background(const std::stop_token& stop);

  std::shared_ptr<ObjectStore> store_;
  OwnerOptions options_;
  std::mutex mutex_;
  OwnerRecord record_;
  std::string etag_;
  Status lost_ = absl::OkStatus();
  std::mutex waiting_;
  std::condition_variable_any wake_;
  int64_t of_process_ = 0;  // a forked child has no thread to wait for
  std::jthread thread_;
};

// Who has it; NOT_FOUND if nobody ever had.
StatusOr<OwnerRecord> read_owner(ObjectStore& store);
// "job 'x' (pid 12 on node-a, token 3)".
std::string in_words(const OwnerRecord& owner);
// Whether its process is known to be gone, its lease ran out, or it let go.
bool is_gone(const OwnerRecord& owner, int64_t now_s);

}  // namespace keepstep::checkpoint
