#include "agent/rings/ring_service.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/overloaded.h"
#include "base/socket/local_socket.h"

namespace keepstep::agent {
namespace {

constexpr size_t kMaxClients = 1024;
constexpr size_t kMaxRings = 64;
constexpr size_t kMaxOfOneName = 8;
constexpr uint32_t kMaxDeaths = 3;  // of loader processes in a row without a new item

constexpr uint64_t kMaxPosition = uint64_t{1} << 62;  // no sum of positions overflows

bool readable(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN};
  return poll(&waiting, 1, 0) > 0;
}

bool hung_up(int fd) {
  pollfd waiting{.fd = fd, .events = POLLRDHUP};
  return poll(&waiting, 1, 0) > 0;
}

// 0 if it is not a pidfd, or its process has ended.
pid_t pid_of(const Fd& pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  for (std::string name; info >> name;) {
    int64_t pid = 0;
    if (name == "Pid:" && info >> pid) {
      return pid > 0 ? static_cast<pid_t>(pid) : 0;
    }
    info.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// How a process ended, if it was our child; otherwise this is unknown.
std::string reap(const Fd& pidfd) {
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return "ended";
  }
  return info.si_code == CLD_EXITED
             ? absl::StrFormat("exited with code %d", info.si_status)
             : absl::StrFormat("was killed by signal %d (%s)", info.si_status, strsignal(info.si_status));
}

}  // namespace

StatusOr<std::unique_ptr<RingService>> RingService::open(EventLoop& loop, const std::string& path, Note note) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd listener, listen_local(path));
  std::unique_ptr<RingService> service(new RingService(loop, std::move(listener), std::move(note)));
  KEEPSTEP_RETURN_IF_ERROR(loop.watch(service->listener_.get(), [raw = service.get()] { raw->on_connection(); }));
  return service;
}

RingService::~RingService() {
  loop_.unwatch(listener_.get());
  for (auto& [incarnation, ring] : rings_) {
    ring.owner->set_loader(data::LoaderState::kGivenUp, "the agent ends");
    end_loader(ring);
  }
  for (const auto& [fd, pidfd] : dying_) {
    loop_.unwatch(fd);
  }
  for (const auto& [id, client] : clients_) {
    loop_.unwatch(client.socket.fd());
    if (client.pidfd.valid()) {
      loop_.unwatch(client.pidfd.get());
    }
  }
}

void RingService::ring_bells() {
  for (auto& [incarnation, ring] : rings_) {
    ring.owner->ring_bell();
  }
}

void RingService::let_out(pid_t pid) {
  for (const auto& [id, client] : clients_) {
    if (client.pid == pid) {
      stop_reading(id);
    }
  }
}

// ---- clients ----

void RingService::on_connection() {
  StatusOr<Accepted> accepted = accept_local(listener_);
  if (!accepted.ok() || clients_.size() >= kMaxClients) {
    spdlog::warn("refused a reader of batches: {}",
                 accepted.ok() ? "too many" : std::string(accepted.status().message()));
    return;
  }
  const uint64_t id = next_client_++;
  Client& client = clients_[id];
  client.socket = std::move(accepted->socket);
  client.pid = accepted->peer.pid;
  client.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, client.pid, 0)));
  (void)loop_.watch(client.socket.fd(), [this, id] { on_packet(id); });
  if (client.pidfd.valid()) {
    (void)loop_.watch(client.pidfd.get(), [this, id] {
      // Its last message, that it leaves, may still be in the socket.
      while (clients_.contains(id) && readable(clients_.at(id).socket.fd())) {
        on_packet(id);
      }
      let_go(id);
    });
  }
}

void RingService::on_packet(uint64_t id) {
  // The descriptor may have belonged to a connection that ended in this turn of the loop.
  if (!clients_.contains(id) || !readable(clients_.at(id).socket.fd())) {
    return;
  }
  StatusOr<Packet> packet = clients_.at(id).socket.receive();
  if (!packet.ok()) {
    let_go(id);
    return;
  }
  if (packet->bytes.size() > messages::kMaxRingMessageBytes || !packet->fds.empty()) {
    spdlog::warn("a reader of batches was let go: a message of {} bytes and {} descriptors", packet->bytes.size(),
                 packet->fds.size());
    let_go(id);
    return;
  }
  const auto request = messages::read<messages::FromReader>(packet->bytes);
  if (!request.ok()) {
    spdlog::warn("a reader of batches was let go: {}", std::string(request.status().message()));
    let_go(id);
    return;
  }
  std::visit(Overloaded{
                 [&](const messages::OpenRing& ring) { open(id, ring); },
                 [&](const messages::AskForLoader&) { grant_loader(id); },
                 [&](const messages::LeaveRing&) { stop_reading(id); },
             },
             *request);
}

void RingService::answer(uint64_t id, const messages::RingAnswer& answer, std::span<const int> fds) {
  (void)clients_.at(id).socket.try_send(messages::write(answer), fds);
}

void RingService::refuse(uint64_t id, const std::string& because) {
  (void)clients_.at(id).socket.try_send(messages::write(messages::RingRefusal{because}));
}

void RingService::free_row(uint64_t id) {
  Client& client = clients_.at(id);
  if (const auto ring = rings_.find(client.ring); ring != rings_.end()) {
    if (const auto row = ring->second.rows.find(id); row != ring->second.rows.end()) {
      ring->second.owner->leave(row->second);
      ring->second.rows.erase(row);
    }
  }
  client.ring = 0;
}

// With its last reader the ring is removed.
void RingService::stop_reading(uint64_t id) {
  const uint64_t incarnation = clients_.at(id).ring;
  free_row(id);
  if (const auto it = rings_.find(incarnation); it != rings_.end() && it->second.rows.empty()) {
    end_ring(incarnation);
  }
}

void RingService::let_go(uint64_t id) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) {
    return;
  }
  const auto ring = rings_.find(it->second.ring);
  free_row(id);
  if (ring != rings_.end() && ring->second.rows.empty() && rings_of(ring->second.name).size() > 1) {
    end_ring(ring->first);  // the next client finds the other ring or makes one
  }
  loop_.unwatch(it->second.socket.fd());
  if (it->second.pidfd.valid()) {
    loop_.unwatch(it->second.pidfd.get());
  }
  clients_.erase(it);
}

// ---- rings ----

std::vector<uint64_t> RingService::rings_of(const std::string& name) const {
  std::vector<uint64_t> found;
  for (auto it = rings_.rbegin(); it != rings_.rend(); ++it) {
    if (it->second.name == name) {
      found.push_back(it->first);
    }
  }
  return found;
}

void RingService::open(uint64_t id, const messages::OpenRing& request) {
  const auto& [name, round, ahead, behind, limit_bytes, position] = request;
  const data::RingSpec spec{.round = round, .ahead = ahead, .behind = behind, .limit_bytes = limit_bytes};
  const pid_t pid = clients_.at(id).pid;
  free_row(id);
  if (name.empty() || name.size() > messages::kMaxRingNameBytes) {
    refuse(id,
           absl::StrFormat("a ring's name has 1 to %d bytes, this one %d", messages::kMaxRingNameBytes, name.size()));
    return;
  }
  if (position > kMaxPosition) {
    refuse(id, absl::StrFormat("position %d; the last one is %d", position, kMaxPosition));
    return;
  }
  uint64_t incarnation = 0;
  StatusOr<uint32_t> row = absl::OutOfRangeError("the first rank came");
  for (const uint64_t each : rings_of(name)) {
    incarnation = each;
    row = join(each, spec, position, pid);
    if (!absl::IsOutOfRange(row.status())) {
      break;
    }
  }
  if (absl::IsOutOfRange(row.status())) {
    const StatusOr<uint64_t> made = make_ring(name, spec, position, std::string(row.status().message()));
    if (!made.ok()) {
      refuse(id, std::string(made.status().message()));
      return;
    }
    incarnation = *made;
    row = join(incarnation, spec, position, pid);
  }
  if (!row.ok()) {
    refuse(id, std::string(row.status().message()));
    return;
  }
  Ring& ring = rings_.at(incarnation);
  ring.rows[id] = *row;
  clients_.at(id).ring = incarnation;
  end_unread(name, incarnation);
  answer(id, {*row}, std::vector<int>{ring.owner->control_fd(), ring.owner->data_fd()});
}

// OUT_OF_RANGE: this ring lacks what the process wants; the message says why.
StatusOr<uint32_t> RingService::join(uint64_t incarnation, const data::RingSpec& spec, uint64_t position, pid_t pid) {
  Ring& ring = rings_.at(incarnation);
  if (ring.owner->spec() != spec) {
    return absl::OutOfRangeError(
        absl::StrFormat("process %d wants rounds of %d batches, %d ahead, %d behind and a limit of %d bytes", pid,
                        spec.round, spec.ahead, spec.behind, spec.limit_bytes));
  }
  StatusOr<uint32_t> row = ring.owner->join(position, pid);
  if (absl::IsOutOfRange(row.status())) {
    return absl::OutOfRangeError(absl::StrFormat("process %d wants %s", pid, std::string(row.status().message())));
  }
  return row;
}

StatusOr<uint64_t> RingService::make_ring(const std::string& name, const data::RingSpec& spec, uint64_t position,
                                          const std::string& why) {
  const std::vector<uint64_t> others = rings_of(name);
  const auto read =
      std::count_if(others.begin(), others.end(), [&](uint64_t each) { return !rings_.at(each).rows.empty(); });
  if (static_cast<size_t>(read) >= kMaxOfOneName) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the ranks of this node read '%s' in %d different places already, which is the most: %s. Ranks "
                        "that read the same order from about the same position share one loader process",
                        name, read, why));
  }
  if (static_cast<size_t>(read) == others.size() && rings_.size() >= kMaxRings) {
    return absl::FailedPreconditionError(
        absl::StrFormat("there are %d cached loaders on this node already, which is the most", kMaxRings));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<data::RingOwner> owner,
                            data::RingOwner::create(spec, position, next_incarnation_));
  const uint64_t incarnation = next_incarnation_++;
  note_({.event = "ring_opened", .because = why, .ring = name, .batch = position});
  Ring& ring = rings_[incarnation];
  ring.name = name;
  ring.owner = std::move(owner);
  return incarnation;
}

void RingService::end_ring(uint64_t incarnation) {
  end_loader(rings_.at(incarnation));
  rings_.erase(incarnation);
}

// Ends the rings of `name` that nobody reads, except `but`.
void RingService::end_unread(const std::string& name, uint64_t but) {
  for (const uint64_t each : rings_of(name)) {
    if (each != but && rings_.at(each).rows.empty()) {
      end_ring(each);
    }
  }
}

// ---- loader processes ----

void RingService::grant_loader(uint64_t id) {
  const uint64_t incarnation = clients_.at(id).ring;
  const auto it = rings_.find(incarnation);
  if (it == rings_.end() || !it->second.rows.contains(id) || it->second.loader.has_value() ||
      it->second.owner->loader() != data::LoaderState::kNone) {
    answer(id, {});
    return;
  }
  Ring& ring = it->second;
  auto pair = PacketSocket::pair();
  if (!pair.ok()) {
    refuse(id, std::string(pair.status().message()));
    return;
  }
  ring.loader = Loader{.socket = Fd(dup(pair->first.fd())), .head = ring.owner->head(), .starter = id};
  ring.owner->set_loader(data::LoaderState::kStarting);
  (void)loop_.watch(ring.loader->socket.get(), [this, incarnation] { on_loader_hello(incarnation); });
  answer(id, {}, std::vector<int>{pair->second.fd()});
}

// The loader's first message, or the end of the process that should have started it.
void RingService::on_loader_hello(uint64_t incarnation) {
  const auto it = rings_.find(incarnation);
  if (it == rings_.end() || !it->second.loader.has_value() || !readable(it->second.loader->socket.get())) {
    return;
  }
  Ring& ring = it->second;
  const PacketSocket socket(Fd(dup(ring.loader->socket.get())));
  StatusOr<Packet> packet = socket.receive();
  if (ring.loader->pidfd.valid()) {
    if (!packet.ok()) {
      loop_.unwatch(ring.loader->socket.get());  // the pidfd will show how it ended
    }
    return;
  }
  const pid_t pid = packet.ok() && packet->fds.size() == 1 ? pid_of(packet->fds[0]) : 0;
  if (pid <= 1) {
    // If the rank that should have started it is gone, that proves nothing about the loader.
    const auto starter = clients_.find(ring.loader->starter);
    loader_gone(incarnation, "it did not start", starter != clients_.end() && !hung_up(starter->second.socket.fd()));
    return;
  }
  ring.loader->pid = pid;
  ring.loader->pidfd = std::move(packet->fds[0]);
  (void)loop_.watch(ring.loader->pidfd.get(), [this, incarnation] { on_loader_end(incarnation); });
  ring.owner->set_loader(data::LoaderState::kRuns);
  note_({.event = "loader_started", .ring = ring.name, .batch = ring.owner->head(), .pid = pid});
  (void)socket.try_send(messages::write(messages::LoaderRuns{}));
}

void RingService::on_loader_end(uint64_t incarnation) {
  const auto it = rings_.find(incarnation);
  if (it == rings_.end() || !it->second.loader.has_value() || !it->second.loader->pidfd.valid() ||
      !readable(it->second.loader->pidfd.get())) {
    return;
  }
  const pid_t pid = it->second.loader->pid;
  kill(-pid, SIGKILL);  // its DataLoader workers: while one lives, the group's id is not reused
  loader_gone(incarnation, absl::StrFormat("process %d %s", pid, reap(it->second.loader->pidfd)));
}

void RingService::loader_gone(uint64_t incarnation, const std::string& how, bool its_own_fault) {
  Ring& ring = rings_.at(incarnation);
  const uint64_t head = ring.owner->head();
  if (its_own_fault) {
    ring.deaths = head > ring.loader->head ? 1 : ring.deaths + 1;
  }
  const pid_t pid = ring.loader->pid;
  end_loader(ring);
  if (pid != 0) {
    note_({.event = "loader_ended", .because = how, .ring = ring.name, .batch = head, .pid = pid});
  }
  if (ring.deaths >= kMaxDeaths) {
    ring.owner->set_loader(
        data::LoaderState::kGivenUp,
        absl::StrFormat("%d loader processes ended one after the other without a new batch after batch "
                        "%d; the last: %s",
                        ring.deaths, head, how));
  } else {
    ring.owner->set_loader(data::LoaderState::kNone);
  }
}

// It may be dead already. We do not wait for its end: it may have much memory to free.
void RingService::end_loader(Ring& ring) {
  if (!ring.loader.has_value()) {
    return;
  }
  Loader loader = std::move(*ring.loader);
  ring.loader.reset();
  loop_.unwatch(loader.socket.get());
  if (!loader.pidfd.valid()) {
    return;
  }
  const int fd = loader.pidfd.get();
  loop_.unwatch(fd);
  if (readable(fd)) {
    (void)reap(loader.pidfd);
    return;
  }
  kill(-loader.pid, SIGKILL);  // and all that it started
  syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
  dying_[fd] = std::move(loader.pidfd);
  (void)loop_.watch(fd, [this, fd] {
    (void)reap(dying_.at(fd));
    loop_.unwatch(fd);
    dying_.erase(fd);
  });
}

}  // namespace keepstep::agent
