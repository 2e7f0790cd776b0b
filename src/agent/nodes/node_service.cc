#include "agent/nodes/node_service.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/overloaded.h"
#include "base/socket/local_socket.h"
#include "messages/store_value.h"
#include "rank/link/node_link.h"
#include "rank/link/page.h"
#include "rank/link/ring_link.h"

namespace keepstep::agent {

namespace {

constexpr int64_t kLingerNs = 2'000'000'000;                  // after the last client: the next init may follow at once
constexpr int64_t kFirstClientNs = 30'000'000'000;            // the process that started us connects within this time
constexpr uint32_t kMaxWorld = messages::kMaxMessageFds - 1;  // arenas and the generation's page travel in one packet
constexpr size_t kMaxKeyBytes = 4096;
constexpr uint32_t kGroups = 64;

comm::CommConfig config_for(uint32_t world) {
  return {.max_world = world, .groups = kGroups, .group_slot_bytes = 64 << 10};
}

}  // namespace

StatusOr<std::unique_ptr<NodeService>> NodeService::create(const std::string& job,
                                                           const std::optional<StoreNodes>& nodes) {
  const std::string held = nodes ? rank::job_on_node(job, nodes->list, nodes->self) : job;
  KEEPSTEP_ASSIGN_OR_RETURN(HeldName name, HeldName::take(rank::node_name(held)));
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::create());
  KEEPSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<RingService> rings,
      RingService::open(*loop, rank::rings_beside(name.path()), [](const RingService::News& news) {
        spdlog::info("{} ring={} pid={} batch={} {}", news.event, news.ring, news.pid, news.batch, news.because);
      }));
  std::vector<std::string> names;
  for (const SocketAddress& address : nodes ? nodes->addresses : std::vector<SocketAddress>(1)) {
    names.push_back(node_with_address(static_cast<brain::NodeId>(names.size()), address));
  }
  std::unique_ptr<NodeService> service(new NodeService(
      std::move(name), std::move(loop), RootlessStore(std::move(names), nodes ? nodes->self : 0, random_number())));
  service->rings_ = std::move(rings);
  if (nodes) {
    KEEPSTEP_ASSIGN_OR_RETURN(service->lines_,
                              StoreLines::create(*service->loop_, *nodes, job, service->line_handlers()));
  }
  // Last, so a client that finds it finds everything ready.
  KEEPSTEP_ASSIGN_OR_RETURN(service->listener_, listen_local(service->path()));
  return service;
}

StoreLines::Handlers NodeService::line_handlers() {
  return {
      .connected = [this](brain::NodeId node) { carry_out(store_.connected(node)); },
      .received =
          [this](brain::NodeId node, const std::string& text) {
            const auto message = messages::read<messages::ToRootlessStore>(text);
            if (!message.ok()) {
              ++refused_;
              spdlog::warn("node {}: refused a message: {}", node, std::string(message.status().message()));
              return;
            }
            carry_out(store_.on_message(node, *message));
          },
      .disconnected =
          [this](brain::NodeId node, const Status& why) {
            spdlog::info("the connection to node {} ended: {}", node, std::string(why.message()));
            carry_out(store_.disconnected(node, monotonic_ns()));
          },
  };
}

void NodeService::run() {
  idle_since_ns_ = monotonic_ns();
  if (lines_ != nullptr) {
    if (const Status started = lines_->start(); !started.ok()) {
      spdlog::error("no connections to other nodes: {}", std::string(started.message()));
      return;
    }
  }
  (void)loop_->watch(listener_.get(), [this] { on_connection(); });
  loop_->every(std::chrono::milliseconds(100), [this] {
    for (const auto& [id, client] : clients_) {
      client->outbox.flush(client->socket);
    }
    carry_out(store_.tick(monotonic_ns()));
    stop_if_idle();
  });
  loop_->run();
}

void NodeService::stop_if_idle() {
  if (!clients_.empty() || rings_->clients() > 0 || !store_.idle()) {
    idle_since_ns_ = monotonic_ns();
    return;
  }
  if (monotonic_ns() - idle_since_ns_ > (anybody_came_ ? kLingerNs : kFirstClientNs)) {
    loop_->stop();
  }
}

void NodeService::tell_text(Client& client, std::string text, std::span<const int> fds) {
  const Status status = client.outbox.send(client.socket, messages::encode({.text = std::move(text)}), fds);
  if (!status.ok() && !absl::IsUnavailable(status)) {
    spdlog::warn("process {} is disconnected: {}", client.pid, std::string(status.message()));
    (void)shutdown(client.socket.fd(), SHUT_RDWR);  // both sides see the end, and nobody waits for the lost message
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
  client->id = store_.new_client();
  client->socket = std::move(accepted->socket);
  client->pid = accepted->peer.pid;
  client->pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, client->pid, 0)));
  anybody_came_ = true;
  clients_[client->id] = client;
  carry_out(store_.set_busy(true));
  (void)loop_->watch(client->socket.fd(), [this, client] { on_packet(client); });
  if (client->pidfd.valid()) {  // else it is in another pid namespace, and only the socket shows its end
    (void)loop_->watch(client->pidfd.get(), [this, client] { on_exit(client); });
  }
}

void NodeService::on_packet(const std::shared_ptr<Client>& client) {
  StatusOr<Packet> packet = client->socket.receive();
  if (!packet.ok()) {
    on_end(client);
    return;
  }
  const StatusOr<messages::Envelope> envelope = messages::decode(*packet);
  const StatusOr<messages::ToService> message =
      envelope.ok() ? messages::read<messages::ToService>(envelope->text) : envelope.status();
  const Status status = message.ok() ? on_message(*client, *message, std::move(packet->fds)) : message.status();
  if (!status.ok()) {
    ++refused_;
    spdlog::warn("process {}: refused a message: {}", client->pid, std::string(status.message()));
    on_end(client);  // ends only this connection
  }
}

Status NodeService::on_message(Client& client, const messages::ToService& message, std::vector<Fd> fds) {
  Status bad;
  std::visit(Overloaded{
                 [&](const messages::Attach&) { tell(client, messages::Attached{}); },
                 [&](const messages::Join& join) { on_join(client, join); },
                 [&](const messages::Leave&) { leave(client); },
                 [&](const messages::Abort& abort) { on_abort(client, abort); },
                 [&](const messages::StoreCancel& cancel) { store_.cancel(client.id, cancel.id); },
                 [&](const messages::StoreQuestion& question) {
                   StatusOr<std::string> value = messages::value_of(question.value, std::move(fds));
                   bad = value.status();
                   if (value.ok()) {
                     on_store(client, question, *std::move(value));
                   }
                 },
             },
             message);
  return bad;
}

void NodeService::on_abort(const Client& client, const messages::Abort& abort) {
  if (const auto it = groups_.find(client.group); it != groups_.end()) {
    interrupt(it->second, absl::StrFormat("rank %d aborted: %s", client.rank, abort.because));
  }
}

void NodeService::on_store(Client& client, const messages::StoreQuestion& question, std::string value) {
  if (question.op == "absent") {  // of a rank whose question was not answered in time
    const auto reply = messages::store_answer(question.id, true, lines_ == nullptr ? "" : lines_->absent());
    tell(client, reply.message, reply.fds());
    return;
  }
  carry_out(store_.ask({client.id, question.id, question.op, question.key.bytes, std::move(value)}));
}

void NodeService::carry_out(const RootlessStore::Replies& replies) {
  for (const StoreAnswer& answer : replies.answers) {
    if (const auto it = clients_.find(answer.worker); it != clients_.end()) {
      const auto reply = messages::store_answer(answer.id, answer.ok, answer.value);
      tell(*it->second, reply.message, reply.fds());
    }
  }
  for (const RootlessStore::Failure& failure : replies.failures) {
    if (const auto it = clients_.find(failure.client); it != clients_.end()) {
      tell(*it->second, messages::StoreAnswer{.id = failure.id, .error = "store: " + failure.because});
    }
  }
  for (const auto& [node, message] : replies.messages) {
    std::visit([&, to = node](const auto& each) { lines_->send(to, messages::write(each)); }, message);
  }
}

void NodeService::on_join(Client& client, const messages::Join& join) {
  if (const Status status = admit(client, join.key, join.rank, join.world); !status.ok()) {
    tell(client, messages::Refused{std::string(status.message())});
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
      tell_all(group, messages::Refused{std::string(status.message())});
    }
    return absl::OkStatus();
  }
  std::vector<uint32_t> missing;
  for (uint32_t other = 0; other < world; ++other) {
    if (!group.members.contains(other)) {
      missing.push_back(other);
    }
  }
  tell_all(group, messages::Waiting{missing});
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
  tell_all(group, messages::Members{group.config}, fds);
  group.arenas.clear();  // the members have mapped them
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
  tell_all(group, messages::Interrupt{because});
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
  // Its last messages, such as that it leaves, may still be in the socket.
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
  carry_out(store_.forget(client->id));
  if (const auto it = groups_.find(client->group); it != groups_.end()) {
    it->second.members.erase(client->rank);
    interrupt(it->second, absl::StrFormat("rank %d (process %d) ended", client->rank, client->pid));
    if (it->second.members.empty()) {
      groups_.erase(it);
    }
  }
  carry_out(store_.set_busy(!clients_.empty()));
}

}  // namespace keepstep::agent
