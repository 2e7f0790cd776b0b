#include "checkpoint/object_store.h"

#include <cstdlib>
#include <utility>

#include "checkpoint/disk_store.h"
#include "checkpoint/memory/memory_store.h"
#include "checkpoint/s3/s3_store.h"
#include "checkpoint/store_url.h"

namespace keepstep::checkpoint {
namespace {

// Where S3 finds its credentials and its settings (s3/credentials.h, store_url.h): a drain of the memory server, which
// other jobs have started, uses those of the job that asks for it.
constexpr const char* kForDrains[] = {
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "HOME",
    "KEEPSTEP_S3_HTTP",
    "SSL_CERT_FILE",
};

std::unique_ptr<ObjectStore> open_memory(const MemoryUrl& url, const StoreOptions& options) {
  const auto value_of = [&](const char* name) {
    return options.environment ? options.environment(name) : std::getenv(name);
  };
  memory::DestinationSettings settings{.name = url.name, .drain = url.drain, .drain_keep = url.drain_keep};
  if (!url.drain.empty()) {
    for (const char* const name : kForDrains) {
      if (const char* value = value_of(name); value != nullptr) {
        settings.environment[name] = value;
      }
    }
  }
  std::string command = options.command;
  if (command.empty()) {
    const char* given = std::getenv("KEEPSTEP_COMMAND");
    command = given == nullptr || *given == '\0' ? "keepstep" : given;
  }
  const char* peers = std::getenv("KEEPSTEP_MEMORY_PEERS");
  return std::make_unique<memory::MemoryStore>(std::move(settings), std::move(command),
                                               peers != nullptr && *peers != '\0');
}

}  // namespace

StatusOr<std::unique_ptr<ObjectStore>> open_store(std::string_view url, const StoreOptions& options) {
  KEEPSTEP_ASSIGN_OR_RETURN(const StoreUrl parsed, parse_store_url(url));
  if (const auto* folder = std::get_if<FileUrl>(&parsed)) {
    return std::make_unique<DiskStore>(folder->folder);
  }
  if (const auto* in_memory = std::get_if<MemoryUrl>(&parsed)) {
    return open_memory(*in_memory, options);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<S3Store> store, S3Store::open(std::get<S3Url>(parsed), options));
  return store;
}

}  // namespace keepstep::checkpoint
