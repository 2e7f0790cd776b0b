#include "memory_server/server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory_available.h"
#include "base/socket/local_socket.h"
#include "checkpoint/memory/protocol.h"

namespace keepstep::memory_server {
namespace {

constexpr int kTickMs = 1000;
constexpr std::chrono::milliseconds kPackPause{20};  // between looks for chunks to pack

Fd ends_of_process() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  return Fd(signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::create(const ServerOptions& options) {
  KEEPSTEP_ASSIGN_OR_RETURN(HeldName name, HeldName::take(checkpoint::memory::server_name()));
  KEEPSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Extents> extents, Extents::create(options.limit, memory_available));
  Fd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) {
    return errno_status("create an eventfd");
  }
  std::unique_ptr<Server> server(new Server(options, std::move(name), std::move(stop), std::move(extents)));
  KEEPSTEP_RETURN_IF_ERROR(server->prepare_peers());
  // Last: who finds it finds everything ready.
  KEEPSTEP_ASSIGN_OR_RETURN(server->listener_, listen_local(server->path()));
  return server;
}

// Everything that can fail, but no threads: the process may fork before run().
Status Server::prepare_peers() {
  if (!options_.listen && options_.peers.empty()) {
    return absl::OkStatus();
  }
  if (!options_.token) {
    return absl::InvalidArgumentError("memory servers need the token that all of them share");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(context_, net::TlsContext::create(net::SharedKey::memory(*options_.token)));
  if (options_.listen) {
    KEEPSTEP_ASSIGN_OR_RETURN(peer_socket_, listen_tcp(*options_.listen));
    KEEPSTEP_ASSIGN_OR_RETURN(address_, local_address(peer_socket_.get()));
  }
  return absl::OkStatus();
}

Server::Server(const ServerOptions& options, HeldName name, Fd stop, std::shared_ptr<Extents> extents)
    : options_(options),
      name_(std::move(name)),
      stop_(std::move(stop)),
      chunks_(std::make_shared<Chunks>(std::move(extents))),
      library_(chunks_, shelves_),
      drains_(library_),
      origin_(keepstep::to_hex(random_nonce())),
      started_ns_(monotonic_ns()) {
  library_.set_drains(
      [this](const Shelves::Version& version, brain::ServedVersion& facts) { drains_.describe(version, facts); });
  shelves_.on_change([this](const Shelves::Key& key) {
    drains_.wake();
    if (links_ != nullptr) {
      links_->changed(key);
    }
  });
  desk_.drain = [this](const DrainRequest& request) { return drains_.set(request); };
  desk_.status = [this] { return status(); };
  desk_.may_stop = [this](bool force) { return may_stop(force); };
  desk_.stop = [this] { this->stop(); };
}

Server::~Server() {
  std::list<Connected> clients;
  {
    const std::lock_guard lock(mutex_);
    clients.swap(clients_);
  }
  for (Connected& each : clients) {
    shutdown(each.client->fd(), SHUT_RDWR);
    each.thread.join();
  }
  door_.reset();
  drains_.stop();  // they read from peers
  library_.set_elsewhere(nullptr);
  links_.reset();
}

size_t Server::clients() {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const Connected& each) { return !each.over; }));
}

void Server::stop() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
}

void Server::run() {
  const Fd signals = ends_of_process();
  idle_since_ns_ = monotonic_ns();
  if (!options_.peers.empty()) {
    links_ = std::make_unique<PeerLinks>(library_, origin_, context_, options_.peers);
    library_.set_elsewhere(links_.get());
    links_->start();
  }
  if (peer_socket_.valid()) {
    door_ = std::make_unique<PeerDoor>(library_, origin_);
    if (const Status opened = door_->open(std::move(peer_socket_), context_); !opened.ok()) {
      spdlog::error("no door for other servers: {}", std::string(opened.message()));
    }
  }
  packer_ = std::jthread([this](const std::stop_token& token) { pack(token); });
  while (true) {
    pollfd watched[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    (void)poll(watched, std::size(watched), kTickMs);
    if ((watched[1].revents | watched[2].revents) != 0) {
      return;
    }
    if (watched[0].revents != 0) {
      accept_one();
    }
    reap();
    keep_name();
    if (is_idle() && options_.lifetime.count() > 0 &&
        std::chrono::nanoseconds(monotonic_ns() - idle_since_ns_) > options_.lifetime) {
      spdlog::info("ends: nobody has used it for {} s", options_.lifetime.count());
      return;
    }
  }
}

void Server::accept_one() {
  StatusOr<Accepted> accepted = accept_local(listener_);
  if (!accepted.ok()) {
    spdlog::warn("refused a connection: {}", std::string(accepted.status().message()));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (clients_.size() >= kMaxClients) {
    (void)accepted->socket.try_send(
        checkpoint::memory::error_answer(absl::ResourceExhaustedError(absl::StrFormat(
                                             "the memory server has %d clients, which is the most", kMaxClients)))
            .dump());
    return;
  }
  Connected& connected = clients_.emplace_back(std::make_unique<Client>(library_, desk_, std::move(accepted->socket)));
  connected.thread = std::thread([&connected] {
    pthread_setname_np(pthread_self(), "client");
    connected.client->run();
    connected.over = true;
  });
}

void Server::reap() {
  const std::lock_guard lock(mutex_);
  for (auto at = clients_.begin(); at != clients_.end();) {
    if (at->over) {
      at->thread.join();
      at = clients_.erase(at);
    } else {
      ++at;
    }
  }
}

// systemd empties the folder when the user's last session ends, while this process goes on.
void Server::keep_name() {
  if (name_.found()) {
    return;
  }
  name_ = HeldName();
  StatusOr<HeldName> again = HeldName::take(checkpoint::memory::server_name());
  if (!again.ok()) {
    return;  // next time
  }
  if (StatusOr<Fd> listener = listen_local(again->path()); listener.ok()) {
    name_ = *std::move(again);
    listener_ = *std::move(listener);
  }
}

bool Server::is_idle() {
  const uint64_t changes = shelves_.changes();
  const bool idle = changes == seen_changes_ && clients() == 0 && drains_.waiting() == 0;
  seen_changes_ = changes;
  if (!idle) {
    idle_since_ns_ = monotonic_ns();
  }
  return idle;
}

// Packs what was written, after all other work: a save does not wait for it.
void Server::pack(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "packer");
  setpriority(PRIO_PROCESS, 0, 19);  // on Linux, of this thread
  while (!stop.stop_requested()) {
    if (!chunks_->pack_one()) {
      std::this_thread::sleep_for(kPackPause);
    }
  }
}

Status Server::may_stop(bool force) {
  const size_t waiting = force ? 0 : drains_.waiting();
  return waiting == 0 ? absl::OkStatus()
                      : absl::FailedPreconditionError(absl::StrFormat(
                            "%d checkpoints are not drained yet (keepstep memory status); wait, or lose them: --force",
                            waiting));
}

Server::Json Server::status() {
  const Chunks::Totals totals = chunks_->totals();
  Json destinations = Json::array();
  const std::vector<Shelves::Version> versions = shelves_.versions();
  for (const std::string& name : shelves_.destinations()) {
    Json listed = Json::array();
    for (const Shelves::Version& version : versions) {
      if (version.facts.destination == name) {
        listed.push_back({{"step", version.facts.step},
                          {"complete", version.facts.complete},
                          {"pinned", version.facts.pinned},
                          {"bytes", version.bytes},
                          {"objects", version.objects},
                          {"own", version.own},
                          {"age_s", std::chrono::duration<double>(version.facts.age).count()}});
      }
    }
    destinations.push_back({{"name", name}, {"versions", std::move(listed)}, {"drain", drains_.describe(name)}});
  }
  uint64_t logical = 0;
  for (const Shelves::Version& version : versions) {
    logical += version.bytes;
  }
  return {{"pid", getpid()},
          {"uptime_s", static_cast<double>(monotonic_ns() - started_ns_) * 1e-9},
          {"limit_bytes", options_.limit},
          {"lifetime_s", options_.lifetime.count()},
          {"used_bytes", chunks_->extents().used()},
          {"logical_bytes", logical},
          {"unique_bytes", totals.bytes},
          {"stored_bytes", totals.stored},
          {"chunks", totals.chunks},
          {"packed_chunks", totals.packed},
          {"clients", clients()},
          {"address", address_ ? address_->text() : ""},
          {"members", door_ == nullptr ? 0 : door_->members()},
          {"refused_strangers", door_ == nullptr ? 0 : door_->counters().refused},
          {"peers", links_ == nullptr ? Json::array() : links_->describe()},
          {"destinations", std::move(destinations)}};
}

}  // namespace keepstep::memory_server
