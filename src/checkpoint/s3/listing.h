// Pages of S3's listings: objects, folders, and uploads that nobody completed.
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
  std::string algorithm;  // of the parts' checksums, if the server says
};
struct Uploads {
  std::vector<Upload> list;
  double server_now_s = 0;  // 0: it did not say
};
StatusOr<Uploads> list_uploads(S3Client& client, std::string_view prefix);

struct UploadedPart {
  int number = 0;
  uint64_t bytes = 0;
  std::string etag;
  std::string crc32c;  // empty where the server keeps none
};
// NOT_FOUND: no such upload any more.
StatusOr<std::vector<UploadedPart>> list_parts(S3Client& client, std::string_view key, const std::string& upload,
                                               int page_entries = kPageEntries);

Status abort_upload(S3Client& client, std::string_view key, const std::string& upload);

}  // namespace keepstep::checkpoint
