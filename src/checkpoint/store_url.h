// The location of a store, as users write it.
//
//   file:///data/run            a folder, by its absolute path, percent-encoded where necessary
//   s3://bucket/prefix?...      a bucket and the prefix of all keys; parameters, each at most once:
//     region=eu-west-1          default: AWS_REGION, AWS_DEFAULT_REGION, the profile's; then us-east-1
//     endpoint=http://host:9000 default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; then Amazon's for the region
//     addressing=path|virtual   where the bucket's name goes; default: path with a custom endpoint or dots in the name
//     profile=NAME              of the shared credentials file; default: AWS_PROFILE, then "default"
//     ca_file=/path             certificates to trust for https; default: AWS_CA_BUNDLE, SSL_CERT_FILE, the system's
//     http=allow                to talk to an http:// endpoint on another machine; default: KEEPSTEP_S3_HTTP=allow
//   memory://NAME?...         this machine's memory server; NAME: a letter, then letters, digits, '-', '.', '_';
//   parameters:
//     drain=URL                 a file:// or s3:// URL, percent-encoded, to which complete checkpoints are copied
//     drain_keep=N              how many stay there; default: all
// Secrets never belong in a URL: it ends up in logs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

namespace keepstep::checkpoint {

struct FileUrl {
  std::string folder;  // absolute, without a trailing slash (except "/")
};

struct S3Url {
  std::string bucket;
  std::string prefix;  // "" or "a/b/": what keys are appended to
  std::string region;  // the rest: empty if not given
  std::string endpoint;
  std::string addressing;
  std::string profile;
  std::string ca_file;
  std::string http;
};

struct MemoryUrl {
  std::string name;
  std::string drain;  // empty: none
  uint64_t drain_keep = 0;
};

using StoreUrl = std::variant<FileUrl, S3Url, MemoryUrl>;

// INVALID_ARGUMENT says what is wrong and what the correct form is.
StatusOr<StoreUrl> parse_store_url(std::string_view url);

// "%41b" becomes "Ab"; INVALID_ARGUMENT for a '%' without two hexadecimal digits, and for NUL.
StatusOr<std::string> percent_decoded(std::string_view text);
// As SigV4 requires: all but letters, digits and -._~ encoded, '/' too unless `keep_slashes`.
std::string percent_encoded(std::string_view text, bool keep_slashes);

}  // namespace keepstep::checkpoint
