#include "net/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/engine_thread.h"
#include "base/log.h"
#include "base/socket/local_socket.h"

namespace keepstep::net {
namespace {

constexpr std::chrono::milliseconds kFirstPause{50};  // after a failed accept; doubles each time
constexpr std::chrono::milliseconds kLongestPause{1000};
// Between two checks of existing strangers: a flood must not keep them from proving the key.
constexpr int kAcceptsARound = 16;

}  // namespace

// Only a descriptor until it sends something: one that never does costs just a few system calls.
struct Listener::Stranger {
  Fd silent;
  std::optional<TlsStream> stream;
  std::string peer;
  std::string source;
  Deadline deadline;
  TlsStream::Wait wait = POLLIN;

  int fd() const { return stream.has_value() ? stream->fd() : silent.get(); }
  bool has_spoken() const {
    pollfd heard{fd(), POLLIN, 0};
    return stream.has_value() || poll(&heard, 1, 0) != 0;
  }
};

StatusOr<std::unique_ptr<Listener>> Listener::start(const Address& address, std::shared_ptr<const TlsContext> context,
                                                    ListenerOptions options, OnMember on_member, OnRefused on_refused) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd socket, listen_at(address));
  Address bound = address;
  if (std::holds_alternative<SocketAddress>(address)) {
    KEEPSTEP_ASSIGN_OR_RETURN(bound, local_address(socket.get()));
  }
  return start(std::move(socket), std::move(bound), std::move(context), options, std::move(on_member),
               std::move(on_refused));
}

StatusOr<std::unique_ptr<Listener>> Listener::start(Fd socket, std::shared_ptr<const TlsContext> context,
                                                    ListenerOptions options, OnMember on_member, OnRefused on_refused) {
  KEEPSTEP_ASSIGN_OR_RETURN(SocketAddress bound, local_address(socket.get()));
  return start(std::move(socket), std::move(bound), std::move(context), options, std::move(on_member),
               std::move(on_refused));
}

StatusOr<std::unique_ptr<Listener>> Listener::start(Fd socket, Address address,
                                                    std::shared_ptr<const TlsContext> context, ListenerOptions options,
                                                    OnMember on_member, OnRefused on_refused) {
  std::unique_ptr<Listener> listener(new Listener(std::move(socket), std::move(address), std::move(context), options,
                                                  std::move(on_member), std::move(on_refused)));
  if (!listener->stop_.valid()) {
    return errno_status("make an eventfd (raise the limit on open files with `ulimit -n`?)");
  }
  listener->thread_ = start_engine_thread("ks-listener", [listener = listener.get()] { listener->run(); });
  return listener;
}

Listener::Listener(Fd socket, Address address, std::shared_ptr<const TlsContext> context, ListenerOptions options,
                   OnMember on_member, OnRefused on_refused)
    : socket_(std::move(socket)),
      address_(std::move(address)),
      context_(std::move(context)),
      options_(options),
      on_member_(std::move(on_member)),
      on_refused_(std::move(on_refused)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Listener::~Listener() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  if (const auto* unix_path = std::get_if<UnixPath>(&address_)) {
    unlink(unix_path->path.c_str());
  }
}

void Listener::run() {
  std::vector<pollfd> fds;
  while (true) {
    Deadline next = Deadline::never();
    const bool accepts = accept_again_.passed();
    fds.assign({{stop_.get(), POLLIN, 0}, {accepts ? socket_.get() : -1, POLLIN, 0}});
    if (!accepts) {
      next = accept_again_;
    }
    for (const Stranger& stranger : strangers_) {
      fds.push_back({stranger.fd(), stranger.wait, 0});
      next = std::min(next, stranger.deadline);
    }
    poll(fds.data(), fds.size(), next.poll_ms());
    if (fds[0].revents != 0) {
      return;
    }
    auto polled = fds.begin() + 2;
    std::erase_if(strangers_, [&](Stranger& stranger) {
      const bool ready = (polled++)->revents != 0;
      return (ready && advance(stranger)) || is_late(stranger);
    });
    if (fds[1].revents != 0) {
      accept_some();
    }
  }
}

void Listener::accept_some() {
  for (int i = 0; i < kAcceptsARound; ++i) {
    StatusOr<Fd> fd = accept_tcp(socket_.get());
    if (!fd.ok()) {
      return accept_failed(fd.status());
    }
    if (!fd->valid()) {
      return;
    }
    accept_pause_ = {};
    admit(*std::move(fd));
  }
}

void Listener::accept_failed(const Status& why) {
  if (accept_failures_.fetch_add(1) == 0) {
    spdlog::warn(
        "no new connection at {}: {}. Retrying up to once a second, without further warnings; raise the limit on "
        "open files with `ulimit -n`?",
        text_of(address_), std::string(why.message()));
  }
  accept_pause_ = std::clamp(2 * accept_pause_, kFirstPause, kLongestPause);
  accept_again_ = Deadline::after(accept_pause_);
}

void Listener::admit(Fd fd) {
  std::string source;
  std::string peer = text_of(address_);
  if (std::holds_alternative<UnixPath>(address_)) {
    if (const auto user = trusted_peer(fd.get()); !user.ok()) {
      return refuse(refused_, user.status());
    }
  } else {
    const StatusOr<SocketAddress> from = peer_address(fd.get());
    if (!from.ok()) {
      return refuse(refused_, from.status());  // it is already gone
    }
    source = from->ip;
    peer = from->text();
  }
  make_room(source);
  strangers_.push_back(
      {std::move(fd), std::nullopt, std::move(peer), std::move(source), Deadline::after(options_.handshake_limit)});
}

void Listener::make_room(const std::string& source) {
  const auto same = [&](const Stranger& stranger) { return !source.empty() && stranger.source == source; };
  const bool many_of_one =
      static_cast<size_t>(std::ranges::count_if(strangers_, same)) >= options_.max_strangers_per_source;
  if (!many_of_one && strangers_.size() < options_.max_strangers) {
    return;
  }
  // The oldest that has sent nothing, else the oldest: a member sends as soon as it is connected.
  const auto may_go = [&](const Stranger& stranger) { return !many_of_one || same(stranger); };
  auto oldest =
      std::ranges::find_if(strangers_, [&](const Stranger& each) { return may_go(each) && !each.has_spoken(); });
  if (oldest == strangers_.end()) {
    oldest = std::ranges::find_if(strangers_, may_go);
  }
  refuse(made_room_,
         absl::ResourceExhaustedError(absl::StrFormat(
             "%s did not prove the key of this job before it had to make room for newer connections", oldest->peer)));
  strangers_.erase(oldest);
}

// Whether it is no longer a stranger.
bool Listener::advance(Stranger& stranger) {
  if (!stranger.stream.has_value()) {
    if (!std::holds_alternative<UnixPath>(address_)) {
      tune_tcp(stranger.silent.get(), options_.socket_buffer_bytes);
    }
    StatusOr<TlsStream> stream = TlsStream::create(context_, Role::kAccepts, std::move(stranger.silent), stranger.peer);
    if (!stream.ok()) {
      refuse(refused_, stream.status());
      return true;
    }
    stranger.stream = *std::move(stream);
  }
  const StatusOr<TlsStream::Wait> wait = stranger.stream->handshake();
  if (!wait.ok()) {
    refuse(refused_, wait.status());
    return true;
  }
  stranger.wait = *wait;
  if (*wait != 0) {
    return false;
  }
  let_in_ += 1;
  on_member_(*std::move(stranger.stream));
  return true;
}

bool Listener::is_late(const Stranger& stranger) {
  if (!stranger.deadline.passed()) {
    return false;
  }
  refuse(too_slow_,
         absl::DeadlineExceededError(absl::StrFormat("%s did not prove the key of this job in time", stranger.peer)));
  return true;
}

void Listener::refuse(std::atomic<uint64_t>& counter, const Status& why) {
  counter += 1;
  if (on_refused_) {
    on_refused_(why);
  }
}

Listener::Counters Listener::counters() const {
  return {let_in_.load(), refused_.load(), too_slow_.load(), made_room_.load(), accept_failures_.load()};
}

}  // namespace keepstep::net
