// Shared helpers for this module's tests: members of a job, and strangers with their own TLS settings.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "net/connection.h"
#include "net/listener.h"

namespace keepstep::net {

inline constexpr std::chrono::seconds kLong{60};  // longer than anything that works takes
inline Deadline soon() { return Deadline::after(kLong); }

// Derived from the token that consists of `half` twice.
inline SharedKey key_of(std::string_view half = "0123456789abcdef", std::string_view rdzv_id = "job-7") {
  const std::string token = std::string(half) + std::string(half);
  return SharedKey::control(*JobToken::parse(token), rdzv_id);
}
inline std::shared_ptr<const TlsContext> context_of(const SharedKey& key = key_of()) {
  return TlsContext::create(key).value();
}

// Collects a listener's calls, and waits for them.
class Inbox {
 public:
  explicit Inbox(ConnectionOptions options = {}) : options_(options) {}
  Listener::OnMember on_member() {
    return [this](TlsStream stream) {
      const std::lock_guard lock(mutex_);
      connections_.push_back(std::make_unique<Connection>(std::move(stream), options_));
      changed_.notify_all();
    };
  }
  Listener::OnRefused on_refused() {
    return [this](const Status& why) {
      const std::lock_guard lock(mutex_);
      refusals_.push_back(why);
      changed_.notify_all();
    };
  }
  // The next connection; null if none came.
  std::unique_ptr<Connection> connection() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLong, [this] { return !connections_.empty(); })) {
      return nullptr;
    }
    std::unique_ptr<Connection> connection = std::move(connections_.front());
    connections_.pop_front();
    return connection;
  }
  // All refusals, once there are `count` of them.
  std::vector<Status> refusals(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [&] { return refusals_.size() >= count; });
    return refusals_;
  }
  Status refusal() {
    const std::vector<Status> all = refusals(1);
    return all.empty() ? absl::OkStatus() : all.front();
  }

 private:
  const ConnectionOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Connection>> connections_;
  std::vector<Status> refusals_;
};

// A listener on loopback, and what it received.
struct Host {
  explicit Host(ListenerOptions options = {}, const std::string& where = "127.0.0.1:0", const SharedKey& key = key_of(),
                ConnectionOptions connection = {})
      : context(context_of(key)),
        inbox(connection),
        listener(Listener::start(parse_address(where).value(), context, options, inbox.on_member(), inbox.on_refused())
                     .value()) {}
  uint16_t port() const { return std::get<SocketAddress>(listener->address()).port; }
  StatusOr<std::unique_ptr<Connection>> connect(const SharedKey& key = key_of(), ConnectionOptions options = {}) const {
    return Connection::connect(listener->address(), context_of(key), options, soon());
  }

  std::shared_ptr<const TlsContext> context;
  Inbox inbox;
  std::unique_ptr<Listener> listener;
};

// Both ends of one connection.
struct Ends {
  explicit Ends(ConnectionOptions options = {}) : host({}, "127.0.0.1:0", key_of(), options) {
    near = host.connect(key_of(), options).value();
    far = host.inbox.connection();
  }
  Host host;
  std::unique_ptr<Connection> near;  // connected
  std::unique_ptr<Connection> far;   // accepted
};

// OpenSSL's own socket BIO raises SIGPIPE.
inline void ignore_sigpipe() { signal(SIGPIPE, SIG_IGN); }

// A blocking socket, connected from `source` to `port` on loopback; reads time out.
inline Fd plain_socket(uint16_t port, uint32_t source = INADDR_LOOPBACK) {
  ignore_sigpipe();
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(source);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
  const timeval limit{kLong.count(), 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

// Everything received until the other side closes.
inline std::string read_to_end(int fd) {
  std::string all;
  char some[4096];
  ssize_t count = 0;
  while ((count = recv(fd, some, sizeof some, 0)) > 0) {
    all.append(some, static_cast<size_t>(count));
  }
  EXPECT_TRUE(count == 0 || errno == ECONNRESET) << strerror(errno);
  return all;
}

// OpenSSL for a stranger with its own settings, over a blocking socket.
struct PlainTls {
  explicit PlainTls(const SSL_METHOD* method) : context(SSL_CTX_new(method), SSL_CTX_free) { ignore_sigpipe(); }
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context;
  SslPointer over(const Fd& fd) const {
    SslPointer ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), fd.get());
    return ssl;
  }
};

// A process that runs `body`, which gets the read end of a pipe that tell() writes to. Start it before any thread.
class Child {
 public:
  explicit Child(const std::function<int(int told)>& body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[1]);
      _exit(body(ends[0]));
    }
    close(ends[0]);
    to_.reset(ends[1]);
  }
  ~Child() { kill(); }
  template <class Value>
  void tell(const Value& value) const {
    EXPECT_EQ(write(to_.get(), &value, sizeof value), ssize_t{sizeof value});
  }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  // Its exit code; -1 if it was killed.
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  Fd to_;
};

// A folder that only this user can enter; removed with this object.
struct PrivateFolder {
  PrivateFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-net-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path = name;
  }
  ~PrivateFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

}  // namespace keepstep::net
