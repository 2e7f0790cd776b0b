// A small HTTP server inside a test that misbehaves on request; also a proxy in front of a real one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace keepstep::checkpoint {

struct SeenRequest {
  std::string method;
  std::string target;                          // "/bucket/key?query"
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string raw_head;  // as received, without "expect" (the body has already been requested)

  const std::string& header(const std::string& name) const;
};

struct PlannedAnswer {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  // What goes wrong, if anything.
  bool drop = false;                     // the connection is closed without an answer
  std::optional<size_t> cut_after = {};  // of the body; then the connection is closed
  std::optional<std::string> raw = {};   // sent instead of an HTTP answer; then the connection is closed
  bool silent = false;                   // nothing is sent until the client hangs up
};

class FaultServer {
 public:
  using Handler = std::function<PlannedAnswer(const SeenRequest&)>;

  // Answers through `handler`, which many threads call.
  explicit FaultServer(Handler handler);
  FaultServer(const FaultServer&) = delete;
  FaultServer& operator=(const FaultServer&) = delete;
  ~FaultServer();

  std::string endpoint() const;  // "http://127.0.0.1:PORT"
  uint16_t port() const { return port_; }
  // All requests seen so far.
  std::vector<SeenRequest> requests() const;

 private:
  void accept_all();
  void serve(int fd);

  Handler handler_;
  Fd listener_;
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::vector<SeenRequest> requests_;
  std::list<Fd> connections_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
  std::jthread accepting_;
};

// The answer to `request` of the server at `port` on this machine.
PlannedAnswer forwarded(const SeenRequest& request, uint16_t port);

// An error answer in S3's format.
PlannedAnswer s3_error(int status, const std::string& code, const std::string& more_xml = "",
                       std::vector<std::pair<std::string, std::string>> headers = {});

}  // namespace keepstep::checkpoint
