// Copies complete checkpoints from memory to a disk or S3, in the background: one thread for each destination that has
// a drain.
//
// A checkpoint there is whole or does not exist, as if its writers had saved there: data files first, then .metadata,
// then the manifest, under the drain's own claim to that destination (checkpoint/owner.h). Which one is next decides
// brain/memory/room.h. A drain that fails goes on after a pause.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/status.h"
#include "brain/memory/room.h"
#include "checkpoint/memory/protocol.h"
#include "checkpoint/object_store.h"
#include "memory_server/client.h"
#include "memory_server/library.h"

namespace keepstep::memory_server {

class Drains {
 public:
  // The longest pause after a failure; the first is a second, and each doubles.
  static constexpr std::chrono::seconds kMostPause{60};

  explicit Drains(Library& library) : library_(library) {}
  ~Drains() { stop(); }
  // Ends all threads. Half-written objects are dropped; letting go of a destination takes at most 10 s.
  void stop();

  // From now on complete checkpoints of a destination go to this URL. The same again changes nothing but credentials.
  // INVALID_ARGUMENT: the URL. FAILED_PRECONDITION: another drain of this destination is not done yet.
  Status set(const DrainRequest& request);

  // Fills in what became of a version, and whether it is in use.
  void describe(const Shelves::Version& version, brain::ServedVersion& facts);
  // Something changed: look whether something is to be drained.
  void wake();

  // Of all destinations together: checkpoints that wait.
  size_t waiting();
  // Of one destination; null: it has no drain.
  checkpoint::memory::Json describe(const std::string& destination);

 private:
  struct Drain {
    DrainRequest request;
    std::shared_ptr<checkpoint::ObjectStore> store;  // of the try that is under way, or the last one
    std::map<uint64_t, std::string> done;            // the manifest's etag, by step
    std::optional<uint64_t> now;                     // the step that is under way
    std::string failure;                             // of the last try; empty: it went well
    uint64_t failures = 0;
    std::jthread thread;
  };

  void run(const std::string& destination, const std::stop_token& stop);
  std::optional<Shelves::Version> next(Drain& drain);
  Status copy(const DrainRequest& request, const std::shared_ptr<checkpoint::ObjectStore>& store, uint64_t step,
              const std::stop_token& stop);
  Status copy_object(checkpoint::ObjectStore& store, const Shelves::Key& key, const std::stop_token& stop);
  StatusOr<std::string> read_all(const Shelves::Key& key, uint64_t most);
  brain::Drained drained(const Drain& drain, const Shelves::Version& version) const;

  Library& library_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  uint64_t wakes_ = 0;
  std::map<std::string, std::unique_ptr<Drain>> drains_;
};

}  // namespace keepstep::memory_server
