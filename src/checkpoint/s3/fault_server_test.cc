#include "checkpoint/s3/fault_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "checkpoint/text.h"

// A separate file: the server behind fault_server.h, which several tests use.
namespace keepstep::checkpoint {
namespace {

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool receive_more(int fd, std::string& buffer) {
  char block[65536];
  ssize_t got = 0;
  do {
    got = recv(fd, block, sizeof(block), 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    return false;
  }
  buffer.append(block, static_cast<size_t>(got));
  return true;
}

// Parses the first line and the headers; `head` ends with the empty line.
void parse_head(std::string_view head, std::string* first_line, std::map<std::string, std::string>* headers) {
  for (std::string_view line : split(head, '\n')) {
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    const size_t colon = line.find(':');
    if (first_line->empty()) {
      *first_line = std::string(line);
    } else if (colon != std::string_view::npos) {
      std::string name(line.substr(0, colon));
      absl::AsciiStrToLower(&name);
      std::string value(line.substr(colon + 1));
      absl::StripAsciiWhitespace(&value);
      (*headers)[name] = value;
    }
  }
}

const std::string& value_in(const std::map<std::string, std::string>& headers, const std::string& name) {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

// Receives up to and including the empty line; what follows stays in `buffer`.
bool receive_head(int fd, std::string& buffer, std::string* head) {
  size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
    if (!receive_more(fd, buffer)) {
      return false;
    }
  }
  *head = buffer.substr(0, end + 4);
  buffer.erase(0, end + 4);
  return true;
}

bool receive_body(int fd, std::string& buffer, size_t bytes, std::string* body) {
  while (buffer.size() < bytes) {
    if (!receive_more(fd, buffer)) {
      return false;
    }
  }
  *body = buffer.substr(0, bytes);
  buffer.erase(0, bytes);
  return true;
}

void wait_for_hang_up(int fd) {
  pollfd polled{fd, POLLRDHUP, 0};
  while (poll(&polled, 1, -1) < 0 && errno == EINTR) {
  }
}

const char* reason(int status) { return status / 100 == 2 ? "OK" : "Refused"; }

// Returns false if the connection must be closed.
bool send_answer(int fd, const SeenRequest& request, const PlannedAnswer& answer) {
  if (answer.drop) {
    return false;
  }
  if (answer.silent) {
    wait_for_hang_up(fd);
    return false;
  }
  if (answer.raw.has_value()) {
    send_all(fd, *answer.raw);
    return false;
  }
  std::string head = absl::StrFormat("HTTP/1.1 %d %s\r\n", answer.status, reason(answer.status));
  bool sized = false;
  for (const auto& [name, value] : answer.headers) {
    head += absl::StrFormat("%s: %s\r\n", name, value);
    sized |= name == "content-length";
  }
  if (!sized) {
    head += absl::StrFormat("content-length: %d\r\n", answer.body.size());
  }
  head += "\r\n";
  const std::string_view body = request.method == "HEAD" ? "" : std::string_view(answer.body);
  head += body.substr(0, answer.cut_after.value_or(body.size()));
  return send_all(fd, head) && !answer.cut_after.has_value();
}

}  // namespace

const std::string& SeenRequest::header(const std::string& name) const { return value_in(headers, name); }

FaultServer::FaultServer(Handler handler) : handler_(std::move(handler)) {
  listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  KEEPSTEP_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0, "bind");
  KEEPSTEP_CHECK(listen(listener_.get(), 128) == 0, "listen");
  KEEPSTEP_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname");
  port_ = ntohs(address.sin_port);
  accepting_ = std::jthread([this] { accept_all(); });
}

FaultServer::~FaultServer() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    for (const Fd& fd : connections_) {
      shutdown(fd.get(), SHUT_RDWR);
    }
  }
  accepting_.join();
  threads_.clear();
}

std::string FaultServer::endpoint() const { return absl::StrFormat("http://127.0.0.1:%d", port_); }

std::vector<SeenRequest> FaultServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FaultServer::accept_all() {
  while (true) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard lock(mutex_);
    if (ending_) {
      return;
    }
    if (fd.valid()) {
      const int number = fd.get();
      connections_.push_back(std::move(fd));
      threads_.emplace_back([this, number] { serve(number); });
    }
  }
}

void FaultServer::serve(int fd) {
  std::string buffer;
  while (true) {
    std::string head;
    if (!receive_head(fd, buffer, &head)) {
      break;
    }
    SeenRequest request;
    std::string first;
    parse_head(head, &first, &request.headers);
    const size_t space = first.find(' ');
    request.method = first.substr(0, space);
    request.target = first.substr(space + 1, first.rfind(' ') - space - 1);
    if (request.headers.erase("expect") > 0 && !send_all(fd, "HTTP/1.1 100 Continue\r\n\r\n")) {
      break;
    }
    for (std::string_view line : split(head, '\n')) {
      if (!line.starts_with("Expect:")) {
        request.raw_head += std::string(line) + "\n";
      }
    }
    request.raw_head.pop_back();  // split() yields an empty piece after the last line end
    const std::string& length = request.header("content-length");
    if (!receive_body(fd, buffer, length.empty() ? 0 : std::stoul(length), &request.body)) {
      break;
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    if (!send_answer(fd, request, handler_(request))) {
      break;
    }
  }
  shutdown(fd, SHUT_RDWR);  // closed with the server: until then its number is not reused
}

PlannedAnswer forwarded(const SeenRequest& request, uint16_t port) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string buffer;
  std::string head;
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      !send_all(fd.get(), request.raw_head) || !send_all(fd.get(), request.body) ||
      !receive_head(fd.get(), buffer, &head)) {
    return {.drop = true};
  }
  std::string first;
  std::map<std::string, std::string> headers;
  parse_head(head, &first, &headers);
  PlannedAnswer answer{.status = std::stoi(first.substr(first.find(' ') + 1))};
  for (const auto& [name, value] : headers) {
    if (name != "connection" && name != "transfer-encoding") {
      answer.headers.emplace_back(name, value);
    }
  }
  const bool none = request.method == "HEAD" || answer.status == 204 || answer.status == 304;
  const std::string& length = value_in(headers, "content-length");
  KEEPSTEP_CHECK(none || !length.empty(), "the real server sends no length");
  if (!none && !receive_body(fd.get(), buffer, std::stoul(length), &answer.body)) {
    return {.drop = true};
  }
  return answer;
}

PlannedAnswer s3_error(int status, const std::string& code, const std::string& more_xml,
                       std::vector<std::pair<std::string, std::string>> headers) {
  return {.status = status,
          .headers = std::move(headers),
          .body = absl::StrFormat("<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>said so</Message>%s</Error>",
                                  code, more_xml)};
}

}  // namespace keepstep::checkpoint
