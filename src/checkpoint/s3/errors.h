// What an S3 server's refusal means, and what to do about it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/s3/http.h"

namespace keepstep::checkpoint {

// Where the requests of a store go.
struct S3Location {
  std::string bucket;
  std::string prefix;  // "" or "a/b/"
  std::string region;
  std::string endpoint;  // "https://host:port"
  bool virtual_host = false;
  std::string ca_file;

  std::string describe() const;  // "s3://bucket/prefix at http://127.0.0.1:9000"
  // Of a key with its prefix, or of the bucket (""); without a query.
  std::string url_of(std::string_view key) const;
};

struct S3Failure {
  int status = 0;
  std::string code;     // "NoSuchKey"; empty where there is no body (HEAD)
  std::string message;  // the server's words, shortened
  std::string region;   // where the bucket is, if the answer says so
  std::string server_time;
  std::string request_id;
};

S3Failure read_failure(const HttpAnswer& answer);

// Whether the same request may succeed later: overload, a temporary failure, bytes damaged in transit.
bool is_transient(const S3Failure& failure);
// Whether new credentials of the same kind may help.
bool is_expired(const S3Failure& failure);

// The error for the caller. `what`: "write 'step-1/.metadata'"; `signer`: where the credentials come from; `now_s`: the
// local clock, seconds since the epoch.
Status status_of(const S3Failure& failure, std::string_view what, const S3Location& location, std::string_view signer,
                 double now_s);

}  // namespace keepstep::checkpoint
