// Objects in the memory of this machine's memory server, memory://NAME (docs/design/memory_store.md).
//
// They outlive the processes that wrote them, not the server. "Durable" means here: taken by the server. Each calling
// thread has a connection of its own, kept for later calls.
//
// Whoever writes starts the server if there is none. A reader without a server finds an empty store, unless peers are
// configured (KEEPSTEP_MEMORY_PEERS): then it starts one too, because what it looks for may be there.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/memory/memory_link.h"
#include "checkpoint/object_store.h"

namespace keepstep::checkpoint::memory {

class MemoryStore final : public ObjectStore {
 public:
  // `command`: the program `keepstep`, to start a server with.
  MemoryStore(DestinationSettings settings, std::string command, bool has_peers);

  StatusOr<std::string> put(std::string_view key, std::span<const std::byte> bytes,
                            const PutCondition& condition) override;
  StatusOr<std::unique_ptr<ObjectWriter>> create(std::string_view key, uint64_t expected_bytes) override;
  Status read(std::string_view key, uint64_t offset, std::span<std::byte> into) override;
  StatusOr<Object> read_all(std::string_view key, uint64_t max_bytes) override;
  StatusOr<ObjectInfo> head(std::string_view key) override;
  StatusOr<std::vector<ObjectInfo>> list(std::string_view prefix) override;
  StatusOr<std::vector<std::string>> list_folders(std::string_view folder) override;
  Status remove(std::string_view key) override;
  // Dead writers leave nothing: what they had not committed went with their connection.
  StatusOr<uint64_t> remove_leftovers(std::string_view prefix, std::chrono::seconds older_than) override;
  std::string describe() const override;
  void interrupt() override;

 private:
  friend class MemoryWriter;
  enum class If { kReading, kWriting };

  StatusOr<std::unique_ptr<MemoryLink>> take(If why);
  void give_back(std::unique_ptr<MemoryLink> link);
  void forget(const MemoryLink& link);
  StatusOr<Json> ask(If why, const Json& request);
  Status failed(const Status& why) const;

  const DestinationSettings settings_;
  const std::string command_;
  const bool has_peers_;

  std::mutex mutex_;
  pid_t process_;  // whose connections these are: a forked child makes its own
  std::vector<std::unique_ptr<MemoryLink>> idle_;
  std::set<int> sockets_;  // of all links, for interrupt()
  std::atomic<bool> interrupted_ = false;
};

}  // namespace keepstep::checkpoint::memory
