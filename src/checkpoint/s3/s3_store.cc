#include "checkpoint/s3/s3_store.h"

#include <curl/curl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <utility>

#include "checkpoint/keys.h"
#include "checkpoint/s3/digests.h"
#include "checkpoint/s3/listing.h"
#include "checkpoint/s3/s3_writer.h"
#include "checkpoint/s3/trusted_certificates.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr uint64_t kLeastPartBytes = 5 << 20;
constexpr uint64_t kMaxPartBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxParts = 10'000;
constexpr uint64_t kReadPieceBytes = 8 << 20;

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) {
      return value;
    }
  }
  return "";
}

Status check_options(const StoreOptions& options) {
  if (options.tries < 1 || options.parallel < 1 || options.parallel > 64 || options.part_bytes < kLeastPartBytes ||
      options.part_bytes > kMaxPartBytes || options.give_up_after.count() < 0 || options.first_pause.count() < 1 ||
      options.connect_timeout.count() < 1 || options.stall_timeout.count() < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "options of S3: %d tries (1 or more), %d requests side by side (1 to 64), parts of %d bytes (5 MiB to 1 GiB), "
        "or a time that is not positive",
        options.tries, options.parallel, options.part_bytes));
  }
  return absl::OkStatus();
}

int64_t http_time_ns(const std::string& text) {
  const time_t seconds = curl_getdate(text.c_str(), nullptr);
  return seconds > 0 ? int64_t{seconds} * 1'000'000'000 : 0;
}

ObjectInfo info_of(std::string_view key, const HttpAnswer& answer) {
  return {std::string(key), number_of(answer.header("content-length")), unquoted(answer.header("etag")),
          http_time_ns(answer.header("last-modified"))};
}

// "bytes 5-9/100": the total; 0 if there is none.
uint64_t total_of(std::string_view content_range) {
  const size_t slash = content_range.rfind('/');
  return slash == std::string_view::npos ? 0 : number_of(content_range.substr(slash + 1));
}

}  // namespace

StatusOr<std::unique_ptr<S3Store>> S3Store::open(const S3Url& url, const StoreOptions& options) {
  KEEPSTEP_RETURN_IF_ERROR(check_options(options));
  StoreOptions known = options;
  if (!known.environment) {
    known.environment = [](const char* name) -> const char* { return std::getenv(name); };
  }
  const Environment& environment = known.environment;
  S3Location location{.bucket = url.bucket, .prefix = url.prefix};
  location.region =
      first_of({url.region, value_of(environment, "AWS_REGION"), value_of(environment, "AWS_DEFAULT_REGION"),
                region_of_profile(environment, url.profile), "us-east-1"});
  const std::string endpoint =
      first_of({url.endpoint, value_of(environment, "AWS_ENDPOINT_URL_S3"), value_of(environment, "AWS_ENDPOINT_URL")});
  const bool own = !endpoint.empty();
  location.endpoint = own ? endpoint : absl::StrFormat("https://s3.%s.amazonaws.com", location.region);
  while (location.endpoint.ends_with('/')) {
    location.endpoint.pop_back();
  }
  if (!location.endpoint.starts_with("http://") && !location.endpoint.starts_with("https://")) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the endpoint '%s' of S3 (from the environment) begins neither with http:// nor with https://",
                        location.endpoint));
  }
  const bool open_allowed = first_of({url.http, value_of(environment, "KEEPSTEP_S3_HTTP")}) == "allow";
  if (location.endpoint.starts_with("http://") && !open_allowed && !is_loopback(host_of(location.endpoint))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is plain HTTP: anyone on the way can read and change checkpoints. Use https:// "
                        "(ca_file= for a certificate of your own); on an isolated network write http=allow behind the "
                        "place, or set KEEPSTEP_S3_HTTP=allow",
                        location.endpoint));
  }
  location.ca_file = first_of({url.ca_file, value_of(environment, "AWS_CA_BUNDLE"), trusted_certificates(environment)});
  // A certificate for *.s3.amazonaws.com is not valid for a bucket name with dots.
  const bool usual = !own && url.bucket.find('.') == std::string::npos;
  location.virtual_host = url.addressing.empty() ? usual : url.addressing == "virtual";
  if (location.virtual_host && is_address(host_of(location.endpoint))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("addressing=virtual puts the bucket's name before that of the host, which '%s' does not have; "
                        "use addressing=path",
                        location.endpoint));
  }
  CredentialOptions credentials{.environment = environment, .profile = url.profile, .region = location.region};
  credentials.ca_file = location.ca_file;
  return std::unique_ptr<S3Store>(new S3Store(std::move(location), std::move(credentials), known));
}

StatusOr<std::string> S3Store::put(std::string_view key, std::span<const std::byte> bytes,
                                   const PutCondition& condition) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  if (bytes.size() > kMaxPutBytes) {
    return too_large_for_put(key, bytes.size());
  }
  S3Call call{.what = absl::StrFormat("write '%s'", key), .method = "PUT"};
  call.key = std::string(key);
  call.headers = {"content-type: application/octet-stream", "x-amz-checksum-crc32c: " + crc32c_base64(bytes)};
  call.body = bytes;
  if (condition.kind == PutCondition::Kind::kAbsent) {
    call.headers.emplace_back("if-none-match: *");
    call.also = {412};
  } else if (condition.kind == PutCondition::Kind::kMatches) {
    if (condition.etag.find_first_of("\r\n\"") != std::string::npos || condition.etag.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("'%s' cannot be the etag of '%s'", condition.etag, key));
    }
    call.headers.push_back(absl::StrFormat("if-match: \"%s\"", condition.etag));
    call.also = {412};
  }
  StatusOr<S3Reply> reply = client_->call(call);
  const bool gone = condition.kind == PutCondition::Kind::kMatches && absl::IsNotFound(reply.status());
  if (!reply.ok() && !gone) {
    return reply.status();
  }
  if (!gone && reply->answer.status / 100 == 2) {
    return unquoted(reply->answer.header("etag"));
  }
  if (!gone && reply->maybe_done_before) {  // by an earlier try of our own?
    StatusOr<Object> there = read_all(key, bytes.size());
    if (there.ok() && std::ranges::equal(std::as_bytes(std::span(there->bytes.data(), there->bytes.size())), bytes)) {
      return std::move(there->etag);
    }
    if (!there.ok() && !absl::IsNotFound(there.status()) && !absl::IsOutOfRange(there.status())) {
      return there.status();
    }
  }
  return condition_failed(key, condition, head(key), describe());
}

StatusOr<std::unique_ptr<ObjectWriter>> S3Store::create(std::string_view key, uint64_t expected_bytes) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  constexpr uint64_t kStep = 1 << 20;
  const uint64_t needed = (expected_bytes / kMaxParts + kStep) / kStep * kStep;
  const uint64_t part_bytes = std::max(options_.part_bytes, needed);
  if (part_bytes > kMaxPartBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' of %d bytes is larger than objects of S3 can be here (10,000 parts of 1 GiB)", key, expected_bytes));
  }
  return std::make_unique<S3Writer>(*client_, std::string(key), part_bytes, options_.parallel);
}

Status S3Store::read_piece(std::string_view key, uint64_t offset, std::span<std::byte> into, std::string* etag) {
  S3Call call{.what = absl::StrFormat("read '%s'", key), .method = "GET"};
  call.key = std::string(key);
  call.headers = {absl::StrFormat("range: bytes=%d-%d", offset, offset + into.size() - 1)};
  call.into = into;
  call.also = {416};
  const StatusOr<S3Reply> reply = client_->call(call);
  if (absl::IsNotFound(reply.status())) {
    return no_such_object(key, describe());
  }
  KEEPSTEP_RETURN_IF_ERROR(reply.status());
  const HttpAnswer& answer = reply->answer;
  const std::string& range = answer.header("content-range");
  if (answer.status == 416) {
    uint64_t bytes = total_of(range);
    if (range.empty()) {
      KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo there, head(key));
      bytes = there.bytes;
    }
    return beyond_end(key, bytes, offset, into.size(), describe());
  }
  const bool placed = range.starts_with(absl::StrFormat("bytes %d-", offset)) || (answer.status == 200 && offset == 0);
  if (!placed) {
    return absl::DataLossError(absl::StrFormat("%s was asked for '%s' from byte %d on and sent '%s'", describe(), key,
                                               offset, range.empty() ? "all of it" : range));
  }
  if (answer.into_bytes != into.size()) {
    return beyond_end(key, std::max(total_of(range), offset + answer.into_bytes), offset, into.size(), describe());
  }
  *etag = unquoted(answer.header("etag"));
  return absl::OkStatus();
}

Status S3Store::read(std::string_view key, uint64_t offset, std::span<std::byte> into) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  if (into.empty()) {  // HTTP has no empty range
    KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo there, head(key));
    return offset <= there.bytes ? absl::OkStatus() : beyond_end(key, there.bytes, offset, 0, describe());
  }
  const size_t pieces = (into.size() + kReadPieceBytes - 1) / kReadPieceBytes;
  std::vector<Status> results(pieces);
  std::vector<std::string> etags(pieces);
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < pieces && !failed; i = next.fetch_add(1)) {
      const size_t begin = i * kReadPieceBytes;
      results[i] = read_piece(key, offset + begin, into.subspan(begin, std::min(kReadPieceBytes, into.size() - begin)),
                              &etags[i]);
      if (!results[i].ok()) {
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min<size_t>(pieces, options_.parallel); ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
  for (size_t i = 0; i < pieces; ++i) {
    if (absl::IsOutOfRange(results[i])) {  // report the whole read, not a piece
      KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo there, head(key));
      return beyond_end(key, there.bytes, offset, into.size(), describe());
    }
    KEEPSTEP_RETURN_IF_ERROR(results[i]);
  }
  if (std::any_of(etags.begin(), etags.end(), [&](const std::string& etag) { return etag != etags[0]; })) {
    return absl::AbortedError(absl::StrFormat("'%s' in %s was replaced while it was read", key, describe()));
  }
  return absl::OkStatus();
}

StatusOr<Object> S3Store::read_all(std::string_view key, uint64_t max_bytes) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  max_bytes = std::min(max_bytes, kMaxReadAllBytes);
  constexpr uint64_t kAtOnce = 1 << 20;  // an object no larger takes one request
  constexpr uint64_t kErrorBytes = 64 * 1024;
  S3Call call{.what = absl::StrFormat("read '%s'", key), .method = "GET"};
  call.key = std::string(key);
  call.headers = {"x-amz-checksum-mode: ENABLED"};
  if (max_bytes > kAtOnce) {
    KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo there, head(key));
    if (there.bytes > max_bytes) {
      return too_large_to_read(key, there.bytes, max_bytes, describe());
    }
    if (there.bytes > kAtOnce) {
      Object object{std::string(there.bytes, '\0'), there.etag};
      KEEPSTEP_RETURN_IF_ERROR(
          read(key, 0, std::as_writable_bytes(std::span(object.bytes.data(), object.bytes.size()))));
      return object;
    }
  }
  call.max_body_bytes = std::max(std::min(max_bytes, kAtOnce), kErrorBytes);
  const StatusOr<S3Reply> reply = client_->call(call);
  if (absl::IsNotFound(reply.status())) {
    return no_such_object(key, describe());
  }
  if (absl::IsOutOfRange(reply.status())) {
    KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo there, head(key));
    return too_large_to_read(key, there.bytes, max_bytes, describe());
  }
  KEEPSTEP_RETURN_IF_ERROR(reply.status());
  const HttpAnswer& answer = reply->answer;
  if (answer.body.size() > max_bytes) {
    return too_large_to_read(key, answer.body.size(), max_bytes, describe());
  }
  const std::string& crc = answer.header("x-amz-checksum-crc32c");
  const std::span<const std::byte> bytes = std::as_bytes(std::span(answer.body.data(), answer.body.size()));
  if (!crc.empty() && crc.find('-') == std::string::npos && crc != crc32c_base64(bytes)) {
    return absl::DataLossError(absl::StrFormat("'%s' in %s is damaged: its CRC is %s and should be %s", key, describe(),
                                               crc32c_base64(bytes), crc));
  }
  return Object{answer.body, unquoted(answer.header("etag"))};
}

StatusOr<ObjectInfo> S3Store::head(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  S3Call call{.what = absl::StrFormat("look at '%s'", key), .method = "HEAD"};
  call.key = std::string(key);
  const StatusOr<S3Reply> reply = client_->call(call);
  if (absl::IsNotFound(reply.status())) {
    return no_such_object(key, describe());
  }
  KEEPSTEP_RETURN_IF_ERROR(reply.status());
  return info_of(key, reply->answer);
}

StatusOr<std::vector<ObjectInfo>> S3Store::list(std::string_view prefix) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));
  return list_objects(*client_, prefix);
}

StatusOr<std::vector<std::string>> S3Store::list_folders(std::string_view folder) {
  if (!folder.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(check_key(folder));
  }
  return list_common_prefixes(*client_, folder);
}

Status S3Store::remove(std::string_view key) {
  KEEPSTEP_RETURN_IF_ERROR(check_key(key));
  S3Call call{.what = absl::StrFormat("remove '%s'", key), .method = "DELETE"};
  call.key = std::string(key);
  const Status removed = client_->call(call).status();
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

StatusOr<uint64_t> S3Store::remove_leftovers(std::string_view prefix, std::chrono::seconds older_than) {
  KEEPSTEP_RETURN_IF_ERROR(check_prefix(prefix));
  KEEPSTEP_ASSIGN_OR_RETURN(const Uploads uploads, list_uploads(*client_, prefix));
  uint64_t removed = 0;
  for (const Upload& each : uploads.list) {
    const double age_s = std::max(0.0, uploads.server_now_s - each.begun_s);  // a server's two clocks may differ a bit
    if (uploads.server_now_s > 0 && each.begun_s > 0 && age_s >= static_cast<double>(older_than.count())) {
      KEEPSTEP_RETURN_IF_ERROR(abort_upload(*client_, each.key, each.id));
      ++removed;
    }
  }
  return removed;
}

}  // namespace keepstep::checkpoint
