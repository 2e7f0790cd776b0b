#include "agent/nodes/node_service.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/socket/local_socket.h"
#include "rank/link/comm_config.h"
#include "rank/link/node_link.h"
#include "rank/link/page.h"
#include "rank/link/ring_link.h"
#include "rank/link/store_messages.h"

namespace keepstep::agent {

using rank::Message;
using rank::MessageType;

namespace {

constexpr int64_t kLingerNs = 2'000'000'000;              // after the last client: the next init may follow at once
constexpr int64_t kFirstClientNs = 30'000'000'000;        // whoever started us connects within this time
constexpr uint32_t kMaxWorld = rank::kMaxMessageFds - 1;  // arenas and the generation's page travel in one packet
constexpr size_t kMaxKeyBytes = 4096;
constexpr uint32_t kGroups = 64;

comm::CommConfig config_for(uint32_t world) {
  return {.max_world = world, .groups = kGroups, .group_slot_bytes = 64 << 10};
}

}  // namespace

StatusOr<std::unique_ptr<NodeService>> NodeService::create(const std::string& job) {
  KEEPSTEP_ASSIGN_OR_RETURN(HeldName name, HeldName::take(rank::node_name(job)));
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::create());
  KEEPSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<RingService> rings,
      RingService::open(*loop, rank::rings_beside(name.path()), [](const RingService::News& news) {
        spdlog::info("{} ring={} pid={} batch={} {}", news.event, news.ring, news.pid, news.batch, news.because);
      }));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd listener, listen_local(name.path()));  // the last: whoever finds it finds all
  std::unique_ptr<NodeService> service(new NodeService(std::move(name), std::move(loop), std::move(listener)));
  service->rings_ = std::move(rings);
  return service;
}

void NodeService::run() {
  idle_since_ns_ = monotonic_ns();
  (void)loop_->watch(listener_.get(), [this] { on_connection(); });
  loop_->every(std::chrono::milliseconds(100), [this] {
    for (const auto& [id, client] : clients_) {
      client->outbox.flush(client->socket);
    }
    stop_if_idle();
  });
  loop_->run();
}

void NodeService::stop_if_idle() {
  if (!clients_.empty() || rings_->clients() > 0) {
    return;
  }
  if (monotonic_ns() - idle_since_ns_ > (anybody_came_ ? kLingerNs : kFirstClientNs)) {
    loop_->stop();
  }
}

void NodeService::tell(Client& client, MessageType type, nlohmann::json body, std::span<const int> fds) {
  const Status status = client.outbox.send(client.socket, rank::encode({type, 0, {}, std::move(body)}), fds);
  if (!status.ok() && !absl::IsUnavailable(status)) {
    spdlog::warn("process {} is let go: {}", client.pid, std::string(status.message()));
    (void)shutdown(client.socket.fd(), SHUT_RDWR);  // both sides see the end, and nobody waits for what was not told
  }
}

void NodeService::tell_all(const Group& group, MessageType type, const nlohmann::json& body, std::span<const int> fds) {
  for (const auto& [rank, client] : group.members) {
    tell(*clients_.at(client), type, body, fds);
  }
}

void NodeService::on_connection() {
  StatusOr<Accepted> accepted = accept_local(listener_);
  if (!accepted.ok()) {
    ++refused_;
    spdlog::warn("refused a connection: {}", std::string(accepted.status().message()));
    return;
  }
  const auto client = std::make_shared<Client>();
  client->id = next_client_++;
  client->socket = std::move(accepted->socket);
  client->pid = accepted->peer.pid;
  client->pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, client->pid, 0)));
  anybody_came_ = true;
  clients_[client->id] = client;
  (void)loop_->watch(client->socket.fd(), [this, client] { on_packet(client); });
  if (client->pidfd.valid()) {  // else it is in another pid namespace: then the socket alone tells
    (void)loop_->watch(client->pidfd.get(), [this, client] { on_exit(client); });
  }
}

void NodeService::on_packet(const std::shared_ptr<Client>& client) {
  StatusOr<Packet> packet = client->socket.receive();
  if (!packet.ok()) {
    on_end(client);
    return;
  }
  const StatusOr<Message> message = rank::decode(*packet);
  Status bad = message.status();
  if (message.ok()) {
    try {
      on_message(*client, *message, std::move(packet->fds));
    } catch (const nlohmann::json::exception& error) {
      bad = absl::InvalidArgumentError(error.what());
    }
  }
  if (!bad.ok()) {
    ++refused_;
    spdlog::warn("process {}: refused a message: {}", client->pid, std::string(bad.message()));
    on_end(client);  // that connection only
  }
}

void NodeService::on_message(Client& client, const Message& message, std::vector<Fd> fds) {
  switch (message.type) {
    case MessageType::kAttach:
      tell(client, MessageType::kWelcome, nlohmann::json::object());
      break;
    case MessageType::kJoin:
      on_join(client, message.body);
      break;
    case MessageType::kLeave:
      leave(client);
      break;
    case MessageType::kAbort:
      if (const auto it = groups_.find(client.group); it != groups_.end()) {
        interrupt(it->second,
                  absl::StrFormat("rank %d aborted: %s", client.rank, message.body.at("because").get<std::string>()));
      }
      break;
    case MessageType::kStore: {
      const nlohmann::json& body = message.body;
      StatusOr<std::string> value = rank::store_value(body, std::move(fds));
      if (!value.ok()) {
        throw nlohmann::json::other_error::create(599, std::string(value.status().message()), nullptr);
      }
      for (const StoreAnswer& answer :
           store_.handle({client.id, body.at("id"), body.at("op"), body.at("key"), *std::move(value)})) {
        if (const auto it = clients_.find(answer.worker); it != clients_.end()) {
          const rank::StoreMessage reply = rank::store_answer(answer.id, answer.ok, answer.value);
          tell(*it->second, MessageType::kStoreReply, reply.body, reply.fds());
        }
      }
      break;
    }
    default:
      throw nlohmann::json::other_error::create(599, "an unknown type", nullptr);
  }
}

void NodeService::on_join(Client& client, const nlohmann::json& body) {
  const std::string key = body.at("key");
  if (const Status status = admit(client, key, body.at("rank"), body.at("world")); !status.ok()) {
    tell(client, MessageType::kRefused, {{"because", std::string(status.message())}});
  }
}

Status NodeService::admit(Client& client, const std::string& key, uint32_t rank, uint32_t world) {
  if (!client.group.empty()) {
    return absl::FailedPreconditionError("this link has joined a communicator already");
  }
  if (key.empty() || key.size() > kMaxKeyBytes || rank >= world) {
    return absl::InvalidArgumentError(absl::StrFormat("rank %d of %d ranks cannot join", rank, world));
  }
  if (world > kMaxWorld) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d ranks on one node, %d is the most for ranks that keepstep did not start", world, kMaxWorld));
  }
  Group& group = groups_[key];
  if (group.world == 0) {
    group.world = world;
  }
  if (group.world != world) {
    return absl::FailedPreconditionError(
        absl::StrFormat("rank %d says the world has %d ranks, others said %d", rank, world, group.world));
  }
  if (group.interrupted || group.generation.valid() || group.members.contains(rank)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d is taken%s: a process group is made once, each with a key of its own", rank,
        group.members.contains(rank) ? absl::StrFormat(" by process %d", clients_.at(group.members.at(rank))->pid)
                                     : ""));
  }
  group.members[rank] = client.id;
  client.group = key;
  client.rank = rank;
  if (group.members.size() == world) {
    if (const Status status = open(group); !status.ok()) {
      tell_all(group, MessageType::kRefused, {{"because", std::string(status.message())}});
    }
    return absl::OkStatus();
  }
  std::vector<uint32_t> missing;
  for (uint32_t other = 0; other < world; ++other) {
    if (!group.members.contains(other)) {
      missing.push_back(other);
    }
  }
  tell_all(group, MessageType::kWaiting, {{"missing", missing}});
  return absl::OkStatus();
}

Status NodeService::open(Group& group) {
  group.config = config_for(group.world);
  KEEPSTEP_ASSIGN_OR_RETURN(group.generation,
                            SharedMemory::create("keepstep-group", rank::generation_page_bytes(group.config)));
  std::vector<int> fds = {group.generation.fd()};
  for (uint32_t rank = 0; rank < group.world; ++rank) {
    KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory arena, SharedMemory::create(absl::StrFormat("keepstep-arena-%d", rank),
                                                                       comm::arena_bytes(group.config)));
    group.arenas.push_back(std::move(arena));
    fds.push_back(group.arenas.back().fd());
  }
  auto* page = reinterpret_cast<rank::GenerationPage*>(group.generation.data());
  page->magic = rank::kGenerationMagic;
  page->world = group.world;
  tell_all(group, MessageType::kMembers, {{"comm", rank::to_json(group.config)}}, fds);
  group.arenas.clear();  // the members have them
  return absl::OkStatus();
}

void NodeService::interrupt(Group& group, const std::string& because) {
  if (group.interrupted || !group.generation.valid()) {
    return;
  }
  group.interrupted = true;
  auto* page = reinterpret_cast<rank::GenerationPage*>(group.generation.data());
  page->interrupted.store(1);
  comm::wake_all(group.config, group.generation.data() + rank::kHeaderBytes);
  tell_all(group, MessageType::kInterrupt, {{"because", because}});
}

void NodeService::leave(Client& client) {
  const auto it = groups_.find(client.group);
  if (it == groups_.end()) {
    return;
  }
  it->second.members.erase(client.rank);
  if (it->second.members.empty()) {
    groups_.erase(it);
  }
  client.group.clear();
}

void NodeService::on_exit(const std::shared_ptr<Client>& client) {
  // Its last words, such as that it leaves, may still be in the socket.
  pollfd readable{.fd = client->socket.fd(), .events = POLLIN};
  while (clients_.contains(client->id) && poll(&readable, 1, 0) > 0) {
    on_packet(client);
  }
  on_end(client);
}

void NodeService::on_end(const std::shared_ptr<Client>& client) {
  if (clients_.erase(client->id) == 0) {
    return;
  }
  loop_->unwatch(client->socket.fd());
  if (client->pidfd.valid()) {
    loop_->unwatch(client->pidfd.get());
  }
  store_.forget(client->id);
  if (const auto it = groups_.find(client->group); it != groups_.end()) {
    it->second.members.erase(client->rank);
    interrupt(it->second, absl::StrFormat("rank %d (process %d) ended", client->rank, client->pid));
    if (it->second.members.empty()) {
      groups_.erase(it);
    }
  }
  if (clients_.empty()) {
    store_ = Store();  // the next start of the job, under the same name, begins with no keys
    idle_since_ns_ = monotonic_ns();
  }
}

}  // namespace keepstep::agent
