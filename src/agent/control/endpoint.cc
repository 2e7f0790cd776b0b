#include "agent/control/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_join.h"

namespace keepstep::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTriesForPorts = 200;
constexpr std::chrono::milliseconds kOneTry{2000};  // for one address to accept
constexpr std::chrono::milliseconds kPause{200};    // between tries, and between checks for signals

int left_ms(Clock::time_point until) {
  return static_cast<int>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count()));
}

// Returns a socket bound to `address` that keeps others from using the port. With SO_REUSEADDR two sockets may be bound
// to it as long as neither listens, so a rank of ours can still open its store there.
StatusOr<Fd> reserve(const SocketAddress& address) {
  KEEPSTEP_ASSIGN_OR_RETURN(brain::Address ip, address_from_text(address.ip));
  const bool v6 = address.ip.find(':') != std::string::npos;
  Fd fd(socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno_status("create a TCP socket");
  }
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 name6{.sin6_family = AF_INET6, .sin6_port = htons(address.port)};
  std::memcpy(&name6.sin6_addr, ip.bytes.data(), 16);
  sockaddr_in name4{.sin_family = AF_INET, .sin_port = htons(address.port)};
  std::memcpy(&name4.sin_addr, ip.bytes.data() + 12, 4);
  const auto* name = v6 ? reinterpret_cast<const sockaddr*>(&name6) : reinterpret_cast<const sockaddr*>(&name4);
  if (bind(fd.get(), name, v6 ? sizeof name6 : sizeof name4) != 0) {
    return errno_status("bind " + address.text());
  }
  return fd;
}

// OK once `address` accepted a connection; then `local_ip` is ours. CANCELLED if a signal arrives.
Status try_once(const SocketAddress& address, int limit_ms, const sigset_t& signals, int& got, std::string& local_ip) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, start_connect(address));
  const auto until = Clock::now() + std::chrono::milliseconds(limit_ms);
  pollfd writable{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  while (poll(&writable, 1, std::min(left_ms(until), static_cast<int>(kPause.count()))) == 0) {
    if (got = signal_within(signals, std::chrono::milliseconds(0)); got != 0) {
      return absl::CancelledError("a signal came");
    }
    if (left_ms(until) == 0) {
      return absl::DeadlineExceededError("no answer");
    }
  }
  if (const int error = socket_error(fd.get()); error != 0) {
    return absl::UnavailableError(strerror(error));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(SocketAddress local, local_address(fd.get()));
  local_ip = local.ip;
  return absl::OkStatus();
}

}  // namespace

int signal_within(const sigset_t& signals, std::chrono::milliseconds wait) {
  const timespec limit{.tv_sec = wait.count() / 1000, .tv_nsec = wait.count() % 1000 * 1'000'000};
  return std::max(0, sigtimedwait(&signals, nullptr, &limit));
}

StatusOr<brain::Address> address_from_text(const std::string& ip) {
  brain::Address address;
  if (in_addr v4{}; inet_pton(AF_INET, ip.c_str(), &v4) == 1) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&v4);
    return brain::ipv4(bytes[0], bytes[1], bytes[2], bytes[3]);
  }
  if (inet_pton(AF_INET6, ip.c_str(), address.bytes.data()) == 1) {
    return address;
  }
  return absl::InvalidArgumentError(absl::StrFormat("'%s' is no numeric IPv4 or IPv6 address", ip));
}

std::string text_of(const brain::Address& address) {
  in6_addr v6{};
  std::memcpy(&v6, address.bytes.data(), sizeof v6);
  char text[INET6_ADDRSTRLEN] = {};
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    inet_ntop(AF_INET, address.bytes.data() + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, &v6, text, sizeof text);
  }
  return text;
}

StatusOr<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return absl::NotFoundError(absl::StrFormat("the name '%s' cannot be resolved: %s", host, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        address_from_text(text).ok()) {
      addresses.push_back({text, port});
    }
  }
  if (addresses.empty()) {
    return absl::NotFoundError(absl::StrFormat("the name '%s' has no IPv4 or IPv6 address", host));
  }
  return addresses;
}

StatusOr<SocketAddress> own_address(const std::string& host, uint16_t port, const std::string& who_must) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, resolve(host, port));
  std::vector<std::string> refused;
  for (const SocketAddress& address : addresses) {
    const Status status = reserve({address.ip, 0}).status();
    if (status.ok()) {
      return address;
    }
    refused.push_back(address.ip);
  }
  return absl::FailedPreconditionError(absl::StrFormat("%s: '%s' means %s, which is no address of this machine",
                                                       who_must, host, absl::StrJoin(refused, ", ")));
}

StatusOr<HeldName> claim_endpoint(const SocketAddress& own) {
  StatusOr<HeldName> name = HeldName::take(absl::StrFormat("endpoint-%s-%s", own.text(), this_machine()));
  return absl::IsAlreadyExists(name.status()) ? HeldName() : std::move(name);
}

StatusOr<Route> find_route(const std::string& host, uint16_t port, std::chrono::milliseconds timeout,
                           const sigset_t& signals, int& got) {
  const auto until = Clock::now() + timeout;
  std::vector<std::string> answers;
  int tries = 0;
  do {
    ++tries;
    answers.clear();
    const auto addresses = resolve(host, port);  // every time: a name may become known later
    if (!addresses.ok()) {
      answers.emplace_back(addresses.status().message());
    } else {
      for (const SocketAddress& address : *addresses) {
        Route route{address, ""};
        const int limit_ms = std::min(left_ms(until), static_cast<int>(kOneTry.count()));
        const Status status = try_once(address, limit_ms, signals, got, route.local_ip);
        if (status.ok() || absl::IsCancelled(status)) {
          return status.ok() ? StatusOr<Route>(std::move(route)) : status;
        }
        answers.push_back(absl::StrFormat("%s: %s", address.text(), status.message()));
      }
    }
    if (got = signal_within(signals, std::min(kPause, std::chrono::milliseconds(left_ms(until)))); got != 0) {
      return absl::CancelledError("a signal came");
    }
  } while (left_ms(until) > 0);
  return absl::DeadlineExceededError(absl::StrFormat(
      "nobody answers at the endpoint %s after %g s and %d tries (%s); is node 0 started, is this its address, and may "
      "this machine reach that port?",
      SocketAddress{host, port}.text(), static_cast<double>(timeout.count()) / 1000, tries,
      absl::StrJoin(answers, "; ")));
}

StatusOr<NodePorts> open_ports(const std::string& ip, uint32_t listeners, uint32_t reserved) {
  for (int tries = 0; tries < kTriesForPorts; ++tries) {
    NodePorts ports;
    KEEPSTEP_ASSIGN_OR_RETURN(Fd first, listen_tcp({ip, 0}));
    KEEPSTEP_ASSIGN_OR_RETURN(const SocketAddress at, local_address(first.get()));
    ports.base = at.port;
    ports.listeners.push_back(std::move(first));
    bool all = uint32_t{at.port} + listeners + reserved <= 65536;
    for (uint32_t i = 1; all && i < listeners + reserved; ++i) {
      const SocketAddress next{ip, static_cast<uint16_t>(at.port + i)};
      StatusOr<Fd> fd = i < listeners ? listen_tcp(next) : reserve(next);
      all = fd.ok();
      if (all) {
        (i < listeners ? ports.listeners : ports.reserved).push_back(*std::move(fd));
      }
    }
    if (all) {
      return ports;
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s has no %d free TCP ports side by side (%d tries); are most ports of this machine in use?", ip,
                      listeners + reserved, kTriesForPorts));
}

}  // namespace keepstep::agent
