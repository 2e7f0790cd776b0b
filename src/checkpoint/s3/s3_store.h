// Objects in an S3 bucket, or in any server that speaks its protocol.
//
// Conditions are S3's conditional writes (If-None-Match: *, If-Match), so they are as good as the server's: Amazon and
// MinIO let exactly one of many succeed; versitygw 1.7 lets several. MinIO lists unfinished uploads only for a whole
// key, so remove_leftovers finds none there by prefix; MinIO removes them itself.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/object_store.h"
#include "checkpoint/s3/s3_client.h"
#include "checkpoint/store_url.h"

namespace keepstep::checkpoint {

class S3Store final : public ObjectStore {
 public:
  // INVALID_ARGUMENT: options out of bounds, or an invalid endpoint in the environment.
  static StatusOr<std::unique_ptr<S3Store>> open(const S3Url& url, const StoreOptions& options);

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
  std::string describe() const override { return client_->location().describe(); }
  void interrupt() override { client_->interrupt(); }

 private:
  S3Store(S3Location location, CredentialOptions credentials, const StoreOptions& options)
      : options_(options), client_(std::make_unique<S3Client>(std::move(location), std::move(credentials), options)) {}

  // `etag`: of the object the bytes are from.
  Status read_piece(std::string_view key, uint64_t offset, std::span<std::byte> into, std::string* etag);

  StoreOptions options_;
  std::unique_ptr<S3Client> client_;
};

}  // namespace keepstep::checkpoint
