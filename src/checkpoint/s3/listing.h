// Pages of S3's listings: objects, folders, and uploads that were never completed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/object_store.h"
#include "checkpoint/s3/s3_client.h"

namespace keepstep::checkpoint {

inline constexpr int kPageEntries = 1000;  // S3 sends no more at once

// Keys here are without the store's prefix. `page_entries`: for tests, which have few entries.
StatusOr<std::vector<ObjectInfo>> list_objects(S3Client& client, std::string_view prefix,
                                               int page_entries = kPageEntries);
StatusOr<std::vector<std::string>> list_common_prefixes(S3Client& client, std::string_view folder,
                                                        int page_entries = kPageEntries);

struct Upload {
  std::string key;
  std::string id;
  double begun_s = 0;     // seconds since the epoch, by the server's clock
  std::string algorithm;  // of the parts' checksums, if the server reports it
};
struct Uploads {
  std::vector<Upload> list;
  double server_now_s = 0;  // 0: not reported
};
StatusOr<Uploads> list_uploads(S3Client& client, std::string_view prefix);

struct UploadedPart {
  int number = 0;
  uint64_t bytes = 0;
  std::string etag;
  std::string crc32c;  // empty if the server stores none
};
// NOT_FOUND: the upload no longer exists.
StatusOr<std::vector<UploadedPart>> list_parts(S3Client& client, std::string_view key, const std::string& upload,
                                               int page_entries = kPageEntries);

Status abort_upload(S3Client& client, std::string_view key, const std::string& upload);

}  // namespace keepstep::checkpoint
