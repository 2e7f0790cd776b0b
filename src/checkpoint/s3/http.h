// One HTTP request and its answer, over libcurl: bounded in size and in silence, signed on request.
//
// Connections are reused. A redirect is an answer like any other, because a signature is valid for one host only.
// Certificates are always checked. Requests to this machine never go through a proxy.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace keepstep::checkpoint {

// The credentials that sign a request (AWS Signature, version 4).
struct Signer {
  std::string access_key;
  std::string secret_key;
  std::string region;
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST, DELETE
  std::string url;     // percent-encoded; the query sorted by name: curl 7.88 signs it as it is
  // Names in lower case, values not empty: curl 7.88 signs all of them. A signed request needs x-amz-content-sha256.
  std::vector<std::string> headers;
  std::span<const std::byte> body = {};  // must stay valid until the answer arrives
  const Signer* signer = nullptr;
  std::span<std::byte> into = {};     // where the body of a 200 or 206 goes, if not into the answer
  size_t max_body_bytes = 64 * 1024;  // of the answer, otherwise
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{20'000};  // how long a transfer may move no byte
  std::string ca_file;                              // empty: what libcurl was built to trust
  bool direct = false;                              // never through a proxy
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  size_t into_bytes = 0;  // bytes written to `into`

  // Empty if there is no such header.
  const std::string& header(const std::string& name) const;
};

// Any number of threads may use one client at once.
class HttpClient {
 public:
  HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Returns any complete answer, also one that reports an error. Otherwise
  //   UNAVAILABLE          no connection, or it broke or fell silent: the request may or may not have been carried out
  //   FAILED_PRECONDITION  the certificate cannot be trusted, or no such host
  //   OUT_OF_RANGE         the answer's body is longer than allowed
  //   DATA_LOSS            unbounded headers, or not HTTP
  //   CANCELLED            interrupted
  StatusOr<HttpAnswer> send(const HttpRequest& request);

  // Cancels all current and future requests.
  void interrupt() { interrupted_ = true; }
  bool interrupted() const { return interrupted_; }

 private:
  class Handle;
  std::unique_ptr<Handle> take();
  void give_back(std::unique_ptr<Handle> handle);

  std::atomic<bool> interrupted_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

// "https://host:port/path" -> "host:port"; and whether a host is this machine.
std::string_view host_of(std::string_view url);
bool is_loopback(std::string_view host);
// Whether the host is a numeric address: no bucket name can be put in front of it.
bool is_address(std::string_view host);

}  // namespace keepstep::checkpoint
