// Who writes into a namespace of checkpoints: one job at a time, fenced.
//
// `owner.json` at its root holds a token, which only grows, and the owner's name. To claim is to replace it by a
// conditional write: exactly one of several contenders wins. While a job's owner lives, all other jobs are refused; an
// owner that is gone is taken over with the next token. Gone means: it released the namespace; or it ran on this very
// machine and its process no longer exists; or it did not renew for longer than its lease; or it belonged to the same
// job (the same name, started again). The clock decides only about courtesy: every commit of a checkpoint first renews
// by a conditional write, so an owner that was taken over, rightly or not, finds out and writes no manifest.
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
  std::string claim;  // random: every claim has a text of its own
  std::string job;    // the owner's, in words; the same for all starts of one job. Empty for a job without a name
  std::string host;
  int64_t pid = 0;
  std::string process;  // identifies the process beyond its number: boot, pid namespace, start time
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
  // ABORTED names the live owner. `store` must outlive the result.
  static StatusOr<std::unique_ptr<Owner>> claim(std::shared_ptr<ObjectStore> store, const OwnerOptions& options);
  // Does not release: when an owner just ends, others find that it is gone.
  ~Owner();

  uint64_t token() const { return record_.token; }

  // Confirms that the namespace is still ours. ABORTED names the new owner; NOT_FOUND: somebody removed the record. Any
  // thread.
  Status renew();

  // Lets others claim at once. Best effort; call once, at the end: a store that cannot be reached is interrupted after
  // `limit`, and is unusable afterwards.
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
  int64_t of_process_ = 0;  // a forked child has no thread to join
  std::jthread thread_;
};

// The current owner; NOT_FOUND if there never was one.
StatusOr<OwnerRecord> read_owner(ObjectStore& store);
// "job 'x' (pid 12 on node-a, token 3)".
std::string in_words(const OwnerRecord& owner);
// Whether its process is known to be gone, its lease has expired, or it released the namespace.
bool is_gone(const OwnerRecord& owner, int64_t now_s);

}  // namespace keepstep::checkpoint
