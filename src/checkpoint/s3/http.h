// One HTTP request and its answer, over libcurl: bounded, never longer silent than allowed, signed on request.
//
// Connections are kept and used again; a redirect is an answer like any other, because a signature holds for one host
// only. Certificates are always checked. Requests to this machine never go through a proxy.
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

// Who signs a request (AWS Signature, version 4).
struct Signer {
  std::string access_key;
  std::string secret_key;
  std::string region;
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST, DELETE
  std::string url;     // percent-encoded; the query sorted by name: curl 7.88 signs it as it stands
  // Names in lower case, values not empty: curl 7.88 signs all of them. A signed request needs x-amz-content-sha256.
  std::vector<std::string> headers;
  std::span<const std::byte> body = {};  // the caller's until the answer is there
  const Signer* signer = nullptr;
  std::span<std::byte> into = {};      // where the body of a 200 or 206 goes, if not into the answer
  size_t most_body_bytes = 64 * 1024;  // of the answer, otherwise
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{20'000};  // no byte moves for so long
  std::string ca_file;                              // empty: what libcurl was built to trust
  bool direct = false;                              // never through a proxy
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  size_t into_bytes = 0;  // how many went there

  // Empty if there was none.
  const std::string& header(const std::string& name) const;
};

// Any thread may use one client, many at once.
class HttpClient {
 public:
  HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Any answer that came whole, also of an error. Otherwise
  //   UNAVAILABLE          no connection, or it broke or fell silent: the request may have been carried out or not
  //   FAILED_PRECONDITION  the certificate cannot be trusted, or no such host
  //   OUT_OF_RANGE         the answer's body is longer than it may be
  //   DATA_LOSS            headers without bounds, or no HTTP
  //   CANCELLED            interrupted
  StatusOr<HttpAnswer> send(const HttpRequest& request);

  // All requests now and to come are CANCELLED.
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

// "https://host:port/path" -> "host:port", and whether that is this machine.
std::string_view host_of(std::string_view url);
bool is_loopback(std::string_view host);
// Whether the host is written as a number: nobody's name can be put before it.
bool is_address(std::string_view host);

}  // namespace keepstep::checkpoint
