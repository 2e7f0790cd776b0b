// Objects as files below a folder.
//
// A file is written under a temporary name in ROOT/.keepstep-partial, made durable (fsync), and given its name by one
// rename or link. Then its folder is made durable, and each folder that had to be created. So a key is a whole file or
// none. A device error at fsync ends the writer: the kernel has already forgotten which pages it could not write.
//
// The temporary file is locked (flock) while its writer lives, and has the machine's boot id in its name. So a cleanup
// can tell a dead writer from a slow one; files of other machines, where it cannot, it judges by their age. Conditional
// puts are guarded by a lock on ROOT/.keepstep-partial/lock; `absent` also by link(2), which works on network file
// systems without locks. On those, `matches` is refused (FAILED_PRECONDITION).
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "checkpoint/object_store.h"

namespace keepstep::checkpoint {

class DiskStore final : public ObjectStore {
 public:
  static constexpr uint64_t kHashedBytes = 4 << 20;  // up to this size an etag is the content's XXH3-128

  // `folder`: absolute. It need not exist; the first write creates it.
  explicit DiskStore(std::string folder);

  StatusOr<std::string> put(std::string_view key, std::span<const std::byte> bytes,
                            const PutCondition& condition) override;
  StatusOr<std::unique_ptr<ObjectWriter>> create(std::string_view key, uint64_t expected_bytes) override;
  Status read(std::string_view key, uint64_t offset, std::span<std::byte> into) override;
  StatusOr<Object> read_all(std::string_view key, uint64_t max_bytes) override;
  StatusOr<ObjectInfo> head(std::string_view key) override;
  StatusOr<std::vector<ObjectInfo>> list(std::string_view prefix) override;
  StatusOr<std::vector<std::string>> list_folders(std::string_view folder) override;
  Status remove(std::string_view key) override;
  StatusOr<uint64_t> remove_leftovers(std::string_view prefix, std::chrono::seconds older_than) override;
  std::string describe() const override;
  void interrupt() override { interrupted_ = true; }

 private:
  std::string path_of(std::string_view key) const;
  Status check_alive() const;

  std::string root_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace keepstep::checkpoint
