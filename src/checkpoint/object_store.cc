#include "checkpoint/object_store.h"

#include <utility>

#include "checkpoint/disk_store.h"
#include "checkpoint/s3/s3_store.h"
#include "checkpoint/store_url.h"

namespace keepstep::checkpoint {

StatusOr<std::unique_ptr<ObjectStore>> open_store(std::string_view url, const StoreOptions& options) {
  KEEPSTEP_ASSIGN_OR_RETURN(const StoreUrl parsed, parse_store_url(url));
  if (const auto* folder = std::get_if<FileUrl>(&parsed)) {
    return std::make_unique<DiskStore>(folder->folder);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<S3Store> store, S3Store::open(std::get<S3Url>(parsed), options));
  return store;
}

}  // namespace keepstep::checkpoint
