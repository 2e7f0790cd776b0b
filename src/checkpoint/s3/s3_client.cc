#include "checkpoint/s3/s3_client.h"

#include <curl/curl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/token.h"
#include "checkpoint/keys.h"
#include "checkpoint/s3/digests.h"
#include "checkpoint/store_url.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kSignedBodyBytes = 1 << 20;  // up to this size the signature covers the body over TLS, too

RetryLimits limits_of(const StoreOptions& options) {
  return {.tries = options.tries, .give_up_after = options.give_up_after, .first_pause = options.first_pause};
}

// Retry-After is in seconds, or a date.
std::optional<milliseconds> retry_after(const HttpAnswer& answer) {
  const std::string& text = answer.header("retry-after");
  if (text.empty()) {
    return std::nullopt;
  }
  constexpr double kMaxS = 24 * 3600;
  double seconds = 0;
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    seconds = text.size() > 5 ? kMaxS : std::stod(text);
  } else if (const time_t date = curl_getdate(text.c_str(), nullptr); date > 0) {
    seconds = static_cast<double>(date) - wall_seconds();
  }
  return milliseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, kMaxS) * 1000));
}

bool is_wanted(const S3Call& call, int status) {
  return status / 100 == 2 || std::find(call.also.begin(), call.also.end(), status) != call.also.end();
}

}  // namespace

S3Client::S3Client(S3Location location, CredentialOptions credentials, const StoreOptions& options)
    : location_(std::move(location)),
      options_(options),
      credentials_(
          [&] {
            credentials.limits = limits_of(options);
            credentials.connect_timeout = options.connect_timeout;
            credentials.stall_timeout = options.stall_timeout;
            return std::move(credentials);
          }(),
          http_),
      seed_(options.seed != 0 ? options.seed : random_number()) {}

uint64_t S3Client::next_seed() {
  const std::lock_guard lock(mutex_);
  return ++seed_;
}

void S3Client::interrupt() {
  http_.interrupt();
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  interrupted_bell_.notify_all();
}

bool S3Client::pause(milliseconds duration) {
  std::unique_lock lock(mutex_);
  return !interrupted_bell_.wait_for(lock, duration, [this] { return interrupted_; });
}

StatusOr<HttpAnswer> S3Client::try_once(const S3Call& call, const Credentials& credentials) {
  HttpRequest request{.method = call.method, .url = location_.url_of(call.key), .headers = call.headers};
  std::vector<std::pair<std::string, std::string>> query = call.query;
  std::sort(query.begin(), query.end());
  for (size_t i = 0; i < query.size(); ++i) {
    request.url += absl::StrFormat("%c%s=%s", i == 0 ? '?' : '&', percent_encoded(query[i].first, false),
                                   percent_encoded(query[i].second, false));
  }
  // Over TLS nobody can change the body, and its CRC detects accidents: signing large ones would only cost time.
  const bool whole = call.body.size() <= kSignedBodyBytes || !location_.endpoint.starts_with("https://");
  request.headers.push_back("x-amz-content-sha256: " + (whole ? sha256_hex(call.body) : "UNSIGNED-PAYLOAD"));
  if (!credentials.session_token.empty()) {
    request.headers.push_back("x-amz-security-token: " + credentials.session_token);
  }
  request.body = call.body;
  request.into = call.into;
  request.max_body_bytes = call.max_body_bytes;
  request.connect_timeout = options_.connect_timeout;
  request.stall_timeout = options_.stall_timeout;
  request.ca_file = location_.ca_file;
  const Signer signer{credentials.access_key, credentials.secret_key, location_.region};
  request.signer = &signer;
  return http_.send(request);
}

StatusOr<S3Reply> S3Client::call(const S3Call& call) {
  Retries retries(limits_of(options_), budget_, next_seed());
  const int64_t begin = monotonic_ns();
  bool maybe_done = false;
  bool refreshed = false;
  while (true) {
    KEEPSTEP_ASSIGN_OR_RETURN(const Credentials credentials, credentials_.get(wall_seconds()));
    StatusOr<HttpAnswer> answer = try_once(call, credentials);
    std::optional<milliseconds> wanted_pause;
    Status failed;
    if (answer.ok()) {
      S3Reply reply{.maybe_done_before = maybe_done};
      bool good = is_wanted(call, answer->status);
      bool cut = false;
      if (good && call.xml && answer->status / 100 == 2) {
        StatusOr<Xml> xml = Xml::parse(answer->body);
        cut = !xml.ok();
        good = xml.ok() && xml->root().name() != "Error";
        if (good) {
          reply.xml = *std::move(xml);
        }
      }
      if (good) {
        budget_.succeeded();
        reply.answer = *std::move(answer);
        return reply;
      }
      const S3Failure failure = read_failure(*answer);
      failed = status_of(failure, call.what, location_, credentials.source, wall_seconds());
      if (is_expired(failure) && !refreshed) {
        refreshed = true;
        credentials_.expired(credentials);
        continue;
      }
      if (cut) {
        failed = absl::UnavailableError(
            absl::StrFormat("cannot %s in %s: its answer was cut short", call.what, location_.describe()));
      } else if (!is_transient(failure)) {
        return failed;
      }
      maybe_done |= answer->status >= 500 || answer->status / 100 == 2;
      wanted_pause = retry_after(*answer);
    } else {
      failed = answer.status();
      if (absl::IsOutOfRange(failed) && (call.xml || !call.into.empty() || call.method != "GET")) {
        return absl::DataLossError(
            absl::StrFormat("cannot %s in %s: %s", call.what, location_.describe(), text_of(failed)));
      }
      if (!absl::IsUnavailable(failed)) {
        return failed;
      }
      failed = absl::UnavailableError(
          absl::StrFormat("cannot %s in %s: %s", call.what, location_.describe(), text_of(failed)));
      maybe_done = true;
    }
    const Retries::Decision decision = retries.failed(milliseconds((monotonic_ns() - begin) / 1'000'000), wanted_pause);
    if (!decision.again) {
      // A conflict stays one; everything else was unavailable for too long.
      const std::string text = absl::StrFormat("%s [%s]", text_of(failed), decision.because);
      return absl::IsAborted(failed) ? absl::AbortedError(text) : absl::UnavailableError(text);
    }
    if (!pause(decision.pause)) {
      return interrupted(location_.describe());
    }
  }
}

}  // namespace keepstep::checkpoint
