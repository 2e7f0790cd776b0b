#include "checkpoint/s3/errors.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "checkpoint/s3/credentials.h"
#include "checkpoint/s3/xml.h"
#include "checkpoint/store_url.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr double kNotableSkewS = 240;  // S3 refuses requests from 15 minutes on

template <size_t N>
bool one_of(std::string_view code, const std::array<std::string_view, N>& codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// Seconds since the epoch, from the body or the Date header; 0 if the server did not say.
double server_clock(const S3Failure& failure) {
  const double iso = parse_iso_time(failure.server_time);
  if (iso > 0) {
    return iso;
  }
  const time_t date = curl_getdate(failure.server_time.c_str(), nullptr);
  return date > 0 ? static_cast<double>(date) : 0;
}

std::string skew_text(double ahead_s) {
  const double by = std::abs(ahead_s);
  const std::string how_far = by < 600 ? absl::StrFormat("%.0f s", by) : absl::StrFormat("%.0f min", by / 60);
  return absl::StrFormat("this machine's clock is %s %s of the server's; set it right (NTP, chrony)", how_far,
                         ahead_s > 0 ? "ahead" : "behind");
}

}  // namespace

std::string S3Location::describe() const {
  const std::string folder = prefix.empty() ? "" : "/" + prefix.substr(0, prefix.size() - 1);
  return absl::StrFormat("s3://%s%s at %s", bucket, folder, endpoint);
}

std::string S3Location::url_of(std::string_view key) const {
  const size_t scheme = endpoint.find("://") + 3;
  const std::string base = virtual_host
                               ? absl::StrFormat("%s%s.%s", endpoint.substr(0, scheme), bucket, endpoint.substr(scheme))
                               : absl::StrFormat("%s/%s", endpoint, bucket);
  return key.empty() ? base + (virtual_host ? "/" : "")
                     : absl::StrFormat("%s/%s", base, percent_encoded(prefix + std::string(key), true));
}

S3Failure read_failure(const HttpAnswer& answer) {
  S3Failure failure{.status = answer.status, .region = answer.header("x-amz-bucket-region")};
  failure.server_time = answer.header("date");
  failure.request_id = answer.header("x-amz-request-id");
  const StatusOr<Xml> xml = Xml::parse(answer.body);
  if (!xml.ok()) {
    failure.message = shortened(answer.body);
    return failure;
  }
  const Xml::Element error = xml->root();
  failure.code = shortened(error.text("Code"));
  failure.message = shortened(error.text("Message"));
  if (const std::string region = error.text("Region"); !region.empty()) {
    failure.region = shortened(region);
  }
  if (const std::string time = error.text("ServerTime"); !time.empty()) {
    failure.server_time = time;
  }
  return failure;
}

bool is_transient(const S3Failure& failure) {
  static constexpr std::array<std::string_view, 13> kCodes = {"SlowDown",
                                                              "InternalError",
                                                              "ServiceUnavailable",
                                                              "RequestTimeout",
                                                              "Throttling",
                                                              "TooManyRequests",
                                                              "BadDigest",
                                                              "IncompleteBody",
                                                              "OperationAborted",
                                                              "RequestLimitExceeded",
                                                              "ThrottlingException",
                                                              "ConditionalRequestConflict",
                                                              "XAmzContentChecksumMismatch"};
  if (one_of(failure.code, kCodes)) {
    return true;
  }
  if (failure.code == "NotImplemented" || failure.status == 501 || failure.status == 505 || failure.status == 507) {
    return false;
  }
  // 409 without an error code: somebody else is changing the same thing.
  return failure.status >= 500 || failure.status == 429 || failure.status == 408 ||
         (failure.status == 409 && failure.code.empty());
}

bool is_expired(const S3Failure& failure) {
  static constexpr std::array<std::string_view, 4> kCodes = {"ExpiredToken", "ExpiredTokenException",
                                                             "TokenRefreshRequired", "RequestExpired"};
  return one_of(failure.code, kCodes);
}

Status status_of(const S3Failure& failure, std::string_view what, const S3Location& location, std::string_view signer,
                 double now_s) {
  static constexpr std::array<std::string_view, 4> kRegion = {"PermanentRedirect", "TemporaryRedirect", "Redirect",
                                                              "IllegalLocationConstraintException"};
  static constexpr std::array<std::string_view, 5> kKeys = {"XAdminUserNotFound", "InvalidAccessKeyId", "InvalidToken",
                                                            "InvalidClientTokenId", "UnrecognizedClientException"};
  static constexpr std::array<std::string_view, 4> kFull = {"QuotaExceeded", "XMinioStorageFull",
                                                            "InsufficientCapacity", "XMinioAdminBucketQuotaExceeded"};
  const std::string answer =
      absl::StrFormat("%d %s%s%s", failure.status, failure.code, failure.message.empty() ? "" : ": ", failure.message);
  const std::string text = absl::StrFormat("cannot %s in %s: ", what, location.describe());
  const std::string said = absl::StrFormat(" (it answered %s%s)", answer,
                                           failure.request_id.empty() ? "" : ", request " + failure.request_id);

  const bool elsewhere = !failure.region.empty() && failure.region != location.region;
  if (one_of(failure.code, kRegion) || (failure.code == "AuthorizationHeaderMalformed" && elsewhere) ||
      (failure.status / 100 == 3 && failure.status != 304) || (failure.code.empty() && elsewhere)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%sthe bucket is not in the region '%s'; %s%s", text, location.region,
        elsewhere ? absl::StrFormat("it is in '%s': add region=%s to the URL", failure.region, failure.region)
                  : std::string("name the one it is in by region=, and an endpoint of it"),
        said));
  }
  const double server_s = server_clock(failure);
  const double ahead_s = server_s > 0 ? now_s - server_s : 0;
  if (failure.code == "RequestTimeTooSkewed" ||
      ((failure.status == 403 || failure.status == 401) && std::abs(ahead_s) > kNotableSkewS)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s%s%s", text, server_s > 0 ? skew_text(ahead_s) : "this machine's clock and the server's differ", said));
  }
  if (failure.code == "NoSuchBucket") {
    return absl::FailedPreconditionError(
        absl::StrFormat("%sthere is no such bucket; make it, or correct the URL%s", text, said));
  }
  if (one_of(failure.code, kKeys)) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%sthe server does not know the access key from %s%s", text, signer, said));
  }
  if (failure.code == "SignatureDoesNotMatch") {
    return absl::PermissionDeniedError(
        absl::StrFormat("%sthe secret key from %s does not match its access key, or the region '%s' is wrong%s", text,
                        signer, location.region, said));
  }
  if (is_expired(failure)) {
    return absl::PermissionDeniedError(absl::StrFormat("%sthe credentials from %s have expired%s", text, signer, said));
  }
  if (one_of(failure.code, kFull) || failure.status == 507) {
    return absl::ResourceExhaustedError(absl::StrFormat("%sthe store is full, or its quota used up%s", text, said));
  }
  switch (failure.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(
          absl::StrFormat("%sthe credentials from %s have no right to%s", text, signer, said));
    case 404:
      return absl::NotFoundError(text + "it is not there" + said);
    case 409:
    case 412:
      return absl::AbortedError(text + "somebody else writes there" + said);
    case 416:
      return absl::OutOfRangeError(text + "it is shorter" + said);
    case 501:
    case 405:
      return absl::FailedPreconditionError(text + "the server does not know such requests" + said);
    default:
      return failure.status >= 500 || failure.status == 429
                 ? absl::UnavailableError(text + "the server has trouble" + said)
                 : absl::FailedPreconditionError(text + "the server refuses" + said);
  }
}

}  // namespace keepstep::checkpoint
