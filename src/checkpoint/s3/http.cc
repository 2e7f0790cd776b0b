#include "checkpoint/s3/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "base/clock.h"

namespace keepstep::checkpoint {
namespace {

constexpr size_t kMaxHeaderBytes = 64 * 1024;
constexpr size_t kMaxIdleHandles = 64;  // each with its connection
constexpr long kBufferBytes = 512 * 1024;

void start_curl() {
  static std::once_flag once;
  std::call_once(once, [] { KEEPSTEP_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl"); });
}

// One request in flight: the context of curl's callbacks.
struct Exchange {
  const HttpRequest& request;
  const std::atomic<bool>& interrupted;
  CURL* easy = nullptr;
  HttpAnswer answer;
  size_t sent = 0;
  size_t header_bytes = 0;
  bool body_too_large = false;
  bool headers_too_large = false;
  bool stalled = false;
  curl_off_t moved = -1;
  int64_t moved_at_ns = 0;
};

size_t on_body(char* data, size_t size, size_t count, void* context) {
  auto& exchange = *static_cast<Exchange*>(context);
  const size_t bytes = size * count;
  long status = 0;
  curl_easy_getinfo(exchange.easy, CURLINFO_RESPONSE_CODE, &status);
  HttpAnswer& answer = exchange.answer;
  if (!exchange.request.into.empty() && (status == 200 || status == 206)) {
    if (bytes > exchange.request.into.size() - answer.into_bytes) {
      exchange.body_too_large = true;
      return 0;
    }
    std::memcpy(exchange.request.into.data() + answer.into_bytes, data, bytes);
    answer.into_bytes += bytes;
    return bytes;
  }
  if (bytes > exchange.request.max_body_bytes - answer.body.size()) {
    exchange.body_too_large = true;
    return 0;
  }
  answer.body.append(data, bytes);
  return bytes;
}

size_t on_header(char* data, size_t size, size_t count, void* context) {
  auto& exchange = *static_cast<Exchange*>(context);
  const size_t bytes = size * count;
  const std::string_view line(data, bytes);
  exchange.header_bytes += bytes;
  if (exchange.header_bytes > kMaxHeaderBytes) {
    exchange.headers_too_large = true;
    return 0;
  }
  if (line.starts_with("HTTP/")) {  // discards those of "100 Continue"
    exchange.answer.headers.clear();
    return bytes;
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    absl::AsciiStrToLower(&name);
    std::string value(line.substr(colon + 1));
    absl::StripAsciiWhitespace(&value);
    exchange.answer.headers[std::move(name)] = std::move(value);
  }
  return bytes;
}

size_t on_read(char* into, size_t size, size_t count, void* context) {
  auto& exchange = *static_cast<Exchange*>(context);
  const size_t bytes = std::min(size * count, exchange.request.body.size() - exchange.sent);
  if (bytes > 0) {
    std::memcpy(into, exchange.request.body.data() + exchange.sent, bytes);
  }
  exchange.sent += bytes;
  return bytes;
}

// A reused connection turned out to be closed: curl sends the request again over a new one.
int on_seek(void* context, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<Exchange*>(context);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > exchange.request.body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  exchange.sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

// Called whenever bytes move, and about once a second.
int on_progress(void* context, curl_off_t /*total down*/, curl_off_t down, curl_off_t /*total up*/, curl_off_t up) {
  auto& exchange = *static_cast<Exchange*>(context);
  const int64_t now = monotonic_ns();
  if (down + up != exchange.moved) {
    exchange.moved = down + up;
    exchange.moved_at_ns = now;
  }
  exchange.stalled = now - exchange.moved_at_ns > std::chrono::nanoseconds(exchange.request.stall_timeout).count();
  return exchange.stalled || exchange.interrupted ? 1 : 0;
}

struct HeaderList {
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  ~HeaderList() { curl_slist_free_all(list); }
  void add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list, line.c_str());
    KEEPSTEP_CHECK(longer != nullptr, "memory for a header");
    list = longer;
  }
  curl_slist* list = nullptr;
};

Status failure_of(CURLcode code, const char* detail, const Exchange& exchange) {
  const std::string_view host = host_of(exchange.request.url);
  const std::string why = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  if (exchange.interrupted) {
    return absl::CancelledError(absl::StrFormat("the request to %s was cancelled", host));
  }
  if (exchange.body_too_large) {
    return absl::OutOfRangeError(absl::StrFormat("the response of %s is larger than allowed", host));
  }
  if (exchange.headers_too_large) {
    return absl::DataLossError(absl::StrFormat("the headers of a response of %s do not end", host));
  }
  if (exchange.stalled) {
    return absl::UnavailableError(
        absl::StrFormat("%s was silent for %d ms", host, exchange.request.stall_timeout.count()));
  }
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return absl::UnavailableError(absl::StrFormat("no address is known for %s (%s)", host, why));
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return absl::FailedPreconditionError(absl::StrFormat(
          "the certificate of %s is not trusted (%s); name those to trust by ca_file= or AWS_CA_BUNDLE", host, why));
    case CURLE_URL_MALFORMAT:
      return absl::InvalidArgumentError(absl::StrFormat("'%s' is no address (%s)", exchange.request.url, why));
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:  // HTTP/0.9
      return absl::DataLossError(absl::StrFormat("%s does not speak HTTP (%s)", host, why));
    default:
      return absl::UnavailableError(absl::StrFormat("%s: %s", host, why));
  }
}

}  // namespace

class HttpClient::Handle {
 public:
  Handle() : easy_(curl_easy_init()) { KEEPSTEP_CHECK(easy_ != nullptr, "memory for a connection"); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { curl_easy_cleanup(easy_); }

  StatusOr<HttpAnswer> send(const HttpRequest& request, const std::atomic<bool>& interrupted) {
    Exchange exchange{request, interrupted};
    exchange.easy = easy_;
    exchange.moved_at_ns = monotonic_ns();
    char detail[CURL_ERROR_SIZE] = {};
    HeaderList headers;
    for (const std::string& line : request.headers) {
      headers.add(line);
    }
    curl_easy_reset(easy_);  // keeps the connection
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(easy_, CURLOPT_HTTPHEADER, headers.list);
    set_connection(request);
    set_method(request, exchange);
    if (request.signer != nullptr) {
      const std::string scope = absl::StrFormat("aws:amz:%s:s3", request.signer->region);
      curl_easy_setopt(easy_, CURLOPT_AWS_SIGV4, scope.c_str());
      curl_easy_setopt(easy_, CURLOPT_USERNAME, request.signer->access_key.c_str());
      curl_easy_setopt(easy_, CURLOPT_PASSWORD, request.signer->secret_key.c_str());
    }
    curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy_, CURLOPT_WRITEDATA, &exchange);
    curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy_, CURLOPT_HEADERDATA, &exchange);
    curl_easy_setopt(easy_, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy_, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy_, CURLOPT_XFERINFODATA, &exchange);
    const CURLcode code = curl_easy_perform(easy_);
    if (code != CURLE_OK) {
      return failure_of(code, detail, exchange);
    }
    long status = 0;
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
    exchange.answer.status = static_cast<int>(status);
    return std::move(exchange.answer);
  }

 private:
  void set_connection(const HttpRequest& request) {
    curl_easy_setopt(easy_, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(easy_, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy_, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy_, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy_, CURLOPT_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(easy_, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
    curl_easy_setopt(easy_, CURLOPT_EXPECT_100_TIMEOUT_MS, 300L);
    curl_easy_setopt(easy_, CURLOPT_USERAGENT, "keepstep");
    curl_easy_setopt(easy_, CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
    if (!request.ca_file.empty()) {
      curl_easy_setopt(easy_, CURLOPT_CAINFO, request.ca_file.c_str());
    }
    if (request.direct || is_loopback(host_of(request.url))) {
      curl_easy_setopt(easy_, CURLOPT_PROXY, "");
    }
  }

  void set_method(const HttpRequest& request, Exchange& exchange) {
    if (request.method == "HEAD") {
      curl_easy_setopt(easy_, CURLOPT_NOBODY, 1L);
    } else if (request.method == "PUT" || request.method == "POST") {
      curl_easy_setopt(easy_, CURLOPT_UPLOAD, 1L);
      curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
      curl_easy_setopt(easy_, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(easy_, CURLOPT_READFUNCTION, on_read);
      curl_easy_setopt(easy_, CURLOPT_READDATA, &exchange);
      curl_easy_setopt(easy_, CURLOPT_SEEKFUNCTION, on_seek);
      curl_easy_setopt(easy_, CURLOPT_SEEKDATA, &exchange);
    } else {
      curl_easy_setopt(easy_, CURLOPT_HTTPGET, 1L);
      curl_easy_setopt(easy_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }

  CURL* easy_;
};

const std::string& HttpAnswer::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

HttpClient::HttpClient() { start_curl(); }

HttpClient::~HttpClient() = default;

StatusOr<HttpAnswer> HttpClient::send(const HttpRequest& request) {
  if (interrupted_) {
    return absl::CancelledError(absl::StrFormat("the request to %s was cancelled", host_of(request.url)));
  }
  std::unique_ptr<Handle> handle = take();
  StatusOr<HttpAnswer> answer = handle->send(request, interrupted_);
  give_back(std::move(handle));
  return answer;
}

std::unique_ptr<HttpClient::Handle> HttpClient::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    return std::make_unique<Handle>();
  }
  std::unique_ptr<Handle> handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void HttpClient::give_back(std::unique_ptr<Handle> handle) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdleHandles) {
    idle_.push_back(std::move(handle));
  }
}

std::string_view host_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) {
    url.remove_prefix(scheme + 3);
  }
  return url.substr(0, url.find_first_of("/?"));
}

namespace {

std::string without_port(std::string_view host) {
  if (host.starts_with('[')) {
    return std::string(host.substr(1, host.find(']') - 1));
  }
  return std::string(host.substr(0, host.find(':')));
}

}  // namespace

bool is_loopback(std::string_view host) {
  const std::string name = without_port(host);
  return name == "localhost" || name.ends_with(".localhost") || name.starts_with("127.") || name == "::1";
}

bool is_address(std::string_view host) {
  const std::string name = without_port(host);
  in6_addr parsed;
  return inet_pton(AF_INET, name.c_str(), &parsed) == 1 || inet_pton(AF_INET6, name.c_str(), &parsed) == 1;
}

}  // namespace keepstep::checkpoint
