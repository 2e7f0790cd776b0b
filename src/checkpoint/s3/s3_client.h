// One call to an S3 server: signs it, retries it as long as that may help, and turns refusals into errors.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/object_store.h"
#include "checkpoint/s3/credentials.h"
#include "checkpoint/s3/errors.h"
#include "checkpoint/s3/http.h"
#include "checkpoint/s3/retry.h"
#include "checkpoint/s3/xml.h"

namespace keepstep::checkpoint {

struct S3Call {
  std::string what;  // for errors: "write 'step-1/.metadata'"
  std::string method;
  std::string key = {};  // without the store's prefix; empty: the bucket
  std::vector<std::pair<std::string, std::string>> query = {};
  std::vector<std::string> headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> into = {};
  size_t max_body_bytes = 64 * 1024;
  bool xml = false;            // the answer must be complete XML, and not the <Error> that S3 may send with a 200
  std::vector<int> also = {};  // statuses besides 2xx that the caller handles
};

struct S3Reply {
  HttpAnswer answer;
  std::optional<Xml> xml;  // if requested
  // An earlier try failed in a way that leaves open whether the server carried it out.
  bool maybe_done_before = false;
};

class S3Client {
 public:
  S3Client(S3Location location, CredentialOptions credentials, const StoreOptions& options);

  // Errors as in object_store.h; OUT_OF_RANGE: the body is longer than max_body_bytes. Any thread, many at once.
  StatusOr<S3Reply> call(const S3Call& call);

  void interrupt();
  bool pause(std::chrono::milliseconds duration);  // false: interrupted
  const S3Location& location() const { return location_; }

 private:
  StatusOr<HttpAnswer> try_once(const S3Call& call, const Credentials& credentials);
  uint64_t next_seed();

  S3Location location_;
  StoreOptions options_;
  HttpClient http_;
  CredentialChain credentials_;
  RetryBudget budget_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable interrupted_bell_;
  bool interrupted_ = false;
  uint64_t seed_;
};

}  // namespace keepstep::checkpoint
