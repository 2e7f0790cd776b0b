#include "coordinator/coordinator.h"

#include <atomic>
#include <bit>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/agent_stream.h"
#include "coordinator/brain_thread.h"
#include "coordinator/broadcast.h"
#include "coordinator/seats.h"
#include "net/hub.h"
#include "net/listener.h"
#include "proto/convert.h"

namespace keepstep::coordinator {
namespace {

constexpr std::chrono::seconds kGoodbye{1};  // for agents to read queued messages before stop() returns
constexpr char kStops[] = "the coordinator stops";
constexpr size_t kMaxCommands = 16;  // at once

// The first hundred, then less and less often: a stranger must not be able to fill the disk.
bool worth_a_line(uint64_t count) { return count <= 100 || std::has_single_bit(count); }

control::Welcome welcome_of(const CoordinatorConfig& config) {
  control::Welcome welcome;
  welcome.set_data_secret(net::SharedKey::random_data_secret());
  welcome.set_plain_data(config.plain_data);
  return welcome;
}

void send_effect(AgentStream& stream, Broadcast& broadcast) {
  stream.send(broadcast.envelope_for(stream.node()), broadcast.payload_for(stream.node()));
}
void send_effect(AgentStream& stream, Broadcast&& broadcast) { send_effect(stream, broadcast); }

// Journal lines that explain the size of an elastic job.
bool about_size(const std::string& event) {
  return event == "elastic_start" || event == "size_kept" || event.starts_with("resize");
}

}  // namespace

class Coordinator::Impl final : public AgentStream::Owner {
 public:
  Impl(CoordinatorConfig config, observe::Journal* journal)
      : config_(std::move(config)),
        journal_(journal),
        welcome_(welcome_of(config_)),
        seats_((config_.membership.elastic ? config_.membership.max_nodes : config_.membership.nodes) +
               config_.membership.spare_nodes),
        brain_(
            config_.membership, [this](const brain::Effect& e, brain::Identity newest) { carry_out(e, newest); },
            [this] { expire_handshakes(); }) {}
  ~Impl() override { stop(); }

  Status listen();
  void stop();
  std::string address() const { return address_; }
  uint64_t refused_count() const { return refused_.load() + strangers_.load(); }
  uint64_t stale_count() const { return stale_.load(); }
  std::vector<brain::NodeId> attending() const;
  std::optional<SizeNews> size_news() const;
  void take_commands(Commands commands);

  std::string admit(AgentStream* stream) override;
  StatusOr<brain::NodeId> seat(AgentStream* stream) override;
  Status let_in(AgentStream* stream) override;
  void give_back(AgentStream* stream) override;
  Status asked(AgentStream* stream, const std::string& request) override;
  void attends(AgentStream* stream) override;
  void received(brain::Event event) override { brain_.post(std::move(event)); }
  void holds_table(const AgentStream& stream, uint32_t generation) override { tables_.held(stream.node(), generation); }
  void routed(const AgentStream& from, const control::Routed& message) override;
  void dropped_stale(const AgentStream& stream, brain::Identity identity) override;
  void refused(const AgentStream& stream, const std::string& why) override;
  void left(AgentStream* stream, const std::string& lost) override;
  void ended(AgentStream* stream, const std::string& why) override;

 private:
  using StreamPtr = std::shared_ptr<AgentStream>;

  void attend(net::TlsStream stream);
  void refused_stranger(const Status& why);
  void journal_refusal(std::atomic<uint64_t>& counter, const std::string& because);
  void carry_out(const brain::Effect& effect, brain::Identity newest);
  void send_to(brain::NodeId node, const brain::Effect& effect, brain::Identity newest, const char* what);
  void send_to_all(const brain::Effect& effect, brain::Identity newest);
  void expire_handshakes();
  std::vector<StreamPtr> all_streams();

  const CoordinatorConfig config_;
  observe::Journal* const journal_;
  const control::Welcome welcome_;
  net::LinkOptions link_options_;
  std::string address_;
  std::atomic<uint64_t> refused_ = 0;  // agents and commands
  std::atomic<uint64_t> strangers_ = 0;
  std::atomic<uint64_t> stale_ = 0;

  mutable std::mutex mutex_;  // taken after a stream's own, never before
  std::condition_variable all_ended_;
  std::map<AgentStream*, StreamPtr> streams_;  // all that the hub still has
  std::map<brain::NodeId, StreamPtr> nodes_;   // those that attend
  Seats seats_;                                // numbers assigned to nodes that have yet to attend
  std::set<AgentStream*> commands_there_;
  Commands commands_;
  bool stopping_ = false;
  std::optional<brain::EndJob> end_;  // how the job ended
  std::optional<SizeNews> size_news_;
  TableHoldings tables_;

  BrainThread brain_;  // its thread uses the above
  std::unique_ptr<net::Hub> hub_;
  std::unique_ptr<net::Listener> listener_;  // last: its thread uses the hub
};

Status Coordinator::Impl::listen() {
  KEEPSTEP_ASSIGN_OR_RETURN(const net::Address address, net::parse_address(config_.listen));
  KEEPSTEP_ASSIGN_OR_RETURN(const auto context, net::TlsContext::create(config_.key));
  KEEPSTEP_ASSIGN_OR_RETURN(hub_, net::Hub::start("ks-coordinator"));
  link_options_ = proto::link_options(address);
  auto listener = net::Listener::start(
      address, context, {.handshake_limit = config_.handshake_timeout},
      [this](net::TlsStream stream) { attend(std::move(stream)); },
      [this](const Status& why) { refused_stranger(why); });
  if (!listener.ok()) {
    return absl::UnavailableError(
        absl::StrFormat("the coordinator cannot listen on %s: %s; choose another address, or port 0 for a free one",
                        config_.listen, listener.status().message()));
  }
  listener_ = *std::move(listener);
  address_ = text_of(listener_->address());
  return absl::OkStatus();
}

void Coordinator::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  brain_.stop();
  listener_.reset();
  for (const StreamPtr& stream : all_streams()) {
    stream->finish(absl::StatusCode::kUnavailable, kStops);
  }
  {
    std::unique_lock lock(mutex_);
    all_ended_.wait_for(lock, kGoodbye, [this] { return streams_.empty(); });
  }
  hub_.reset();  // ends the remaining streams
}

void Coordinator::Impl::attend(net::TlsStream connection) {
  std::shared_ptr<net::Link> link = hub_->add(std::move(connection), link_options_);
  const auto stream = std::make_shared<AgentStream>(link, this, config_.membership.term, welcome_,
                                                    AgentStream::Clock::now() + config_.handshake_timeout);
  {
    const std::lock_guard lock(mutex_);
    streams_.emplace(stream.get(), stream);
  }
  hub_->start(link, stream.get());
}

std::string Coordinator::Impl::admit(AgentStream* stream) {
  {
    const std::lock_guard lock(mutex_);
    const auto [it, taken] = nodes_.emplace(stream->node(), streams_.at(stream));
    if (!taken) {
      return absl::StrFormat(
          "node %d is connected already, as '%s' from %s; does another agent run with the same node "
          "id?",
          stream->node(), it->second->node_name(), it->second->peer());
    }
  }
  journal_->write(
      "node_connected", brain_.identity(), "its agent proved the job's key",
      {{"connected_node", int64_t{stream->node()}}, {"name", stream->node_name()}, {"peer", stream->peer()}});
  return {};
}

StatusOr<brain::NodeId> Coordinator::Impl::seat(AgentStream* stream) {
  const std::lock_guard lock(mutex_);
  std::map<brain::NodeId, std::string> attending;
  for (const auto& [node, each] : nodes_) {
    attending[node] = each->node_name();
  }
  return seats_.take(stream, stream->node_name(), attending);
}

void Coordinator::Impl::give_back(AgentStream* stream) {
  const std::lock_guard lock(mutex_);
  seats_.free(stream);
  commands_there_.erase(stream);
}

Status Coordinator::Impl::let_in(AgentStream* stream) {
  const std::lock_guard lock(mutex_);
  if (commands_there_.size() >= kMaxCommands) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d commands wait for their answer already; try again", kMaxCommands));
  }
  commands_there_.insert(stream);
  return absl::OkStatus();
}

Status Coordinator::Impl::asked(AgentStream* stream, const std::string& request) {
  journal_->write("asked", brain_.identity(), "a command that proved the job's key came to the endpoint",
                  {{"name", stream->node_name()}, {"peer", stream->peer()}});
  Commands commands;
  std::weak_ptr<AgentStream> asking;
  {
    const std::lock_guard lock(mutex_);
    commands = commands_;
    asking = streams_.at(stream);
  }
  if (commands == nullptr) {
    return absl::UnavailableError("the job is starting or ending; try again");
  }
  commands(request, [asking](const std::string& answer) {
    if (const StreamPtr there = asking.lock()) {
      there->answer(answer);
    }
  });
  return absl::OkStatus();
}

void Coordinator::Impl::take_commands(Commands commands) {
  const std::lock_guard lock(mutex_);
  commands_ = std::move(commands);
}

// An agent that arrives while the job ends is told how it ended, like all others.
void Coordinator::Impl::attends(AgentStream* stream) {
  std::optional<brain::EndJob> end;
  {
    const std::lock_guard lock(mutex_);
    end = end_;
  }
  if (end.has_value()) {
    send_effect(*stream, Broadcast(*end, brain_.identity(), tables_));
  }
}

void Coordinator::Impl::left(AgentStream* stream, const std::string& lost) {
  const std::lock_guard lock(mutex_);
  if (const auto it = nodes_.find(stream->node()); it != nodes_.end() && it->second.get() == stream) {
    tables_.held(stream->node(), 0);
    nodes_.erase(it);
    if (!lost.empty() && !stopping_) {
      brain_.post(brain::NodeLost{stream->node(), lost});  // before any event from the node's next stream
    }
  }
}

void Coordinator::Impl::ended(AgentStream* stream, const std::string& why) {
  if (!why.empty()) {
    journal_->write("node_lost", brain_.identity(), why,
                    {{"lost_node", int64_t{stream->node()}}, {"name", stream->node_name()}, {"peer", stream->peer()}});
  }
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
  all_ended_.notify_all();
}

void Coordinator::Impl::routed(const AgentStream& from, const control::Routed& message) {
  StreamPtr to;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = nodes_.find(message.peer()); it != nodes_.end()) {
      to = it->second;
    }
  }
  if (to == nullptr) {
    return;  // it is gone, and the subject of the message with it
  }
  control::FromCoordinator onward;
  onward.set_node(message.peer());
  onward.set_term(config_.membership.term);
  onward.mutable_routed()->set_peer(from.node());
  onward.mutable_routed()->set_payload(message.payload());
  to->send(onward);
}

void Coordinator::Impl::dropped_stale(const AgentStream& stream, brain::Identity identity) {
  if (const uint64_t count = ++stale_; worth_a_line(count)) {
    journal_->write("stale", brain_.identity(),
                    absl::StrFormat("an event of term %d, generation %d from node %d; this is term %d", identity.term,
                                    identity.generation, stream.node(), config_.membership.term),
                    {{"count", static_cast<int64_t>(count)}});
  }
}

void Coordinator::Impl::refused(const AgentStream& stream, const std::string& why) {
  journal_refusal(refused_,
                  absl::StrFormat("%s from %s: %s", stream.node() == proto::kCommand ? "a command" : "an agent",
                                  stream.peer(), why));
}

// A peer that only probed whether somebody listens, like a launcher waiting for node 0, just breaks off: not a refusal.
void Coordinator::Impl::refused_stranger(const Status& why) {
  if (!absl::IsUnavailable(why)) {
    journal_refusal(strangers_, "a stranger: " + std::string(why.message()));
  }
}

void Coordinator::Impl::journal_refusal(std::atomic<uint64_t>& counter, const std::string& because) {
  if (const uint64_t count = ++counter; worth_a_line(count)) {
    journal_->write("refused", brain_.identity(), because, {{"count", static_cast<int64_t>(count)}});
  }
}

void Coordinator::Impl::carry_out(const brain::Effect& effect, brain::Identity newest) {
  if (const auto* line = std::get_if<brain::Journal>(&effect)) {
    journal_->write(line->event, newest, line->because, line->fields);
    if (line->aloud && config_.say != nullptr) {
      config_.say("keepstep: " + line->because);
    }
    if (about_size(line->event)) {
      const std::lock_guard lock(mutex_);
      size_news_ = {line->event, line->because, std::chrono::steady_clock::now()};
    }
  } else if (const auto* spawn = std::get_if<brain::Spawn>(&effect)) {
    send_to(spawn->node, effect, newest, "spawn");
  } else if (const auto* part = std::get_if<brain::ReleaseNode>(&effect)) {
    send_to(part->node, effect, newest, "part");
  } else if (const auto* kill = std::get_if<brain::Kill>(&effect)) {
    send_to(kill->node, effect, newest, "kill");
  } else {
    if (const auto* end = std::get_if<brain::EndJob>(&effect)) {
      const std::lock_guard lock(mutex_);
      end_ = *end;
    }
    send_to_all(effect, newest);
  }
}

std::vector<brain::NodeId> Coordinator::Impl::attending() const {
  const std::lock_guard lock(mutex_);
  std::vector<brain::NodeId> nodes;
  for (const auto& [node, stream] : nodes_) {
    nodes.push_back(node);
  }
  return nodes;
}

std::optional<Coordinator::SizeNews> Coordinator::Impl::size_news() const {
  const std::lock_guard lock(mutex_);
  return size_news_;
}

void Coordinator::Impl::send_to(brain::NodeId node, const brain::Effect& effect, brain::Identity newest,
                                const char* what) {
  StreamPtr stream;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = nodes_.find(node); it != nodes_.end()) {
      stream = it->second;
    }
  }
  if (stream != nullptr) {
    send_effect(*stream, Broadcast(effect, newest, tables_));
    return;
  }
  journal_->write("undelivered", newest, absl::StrFormat("node %d is not connected", node),
                  {{"effect", std::string(what)}});
}

void Coordinator::Impl::send_to_all(const brain::Effect& effect, brain::Identity newest) {
  std::vector<StreamPtr> streams;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [node, stream] : nodes_) {
      streams.push_back(stream);
    }
  }
  Broadcast broadcast(effect, newest, tables_);
  for (const StreamPtr& stream : streams) {
    send_effect(*stream, broadcast);
  }
}

void Coordinator::Impl::expire_handshakes() {
  for (const StreamPtr& stream : all_streams()) {
    stream->expire(AgentStream::Clock::now());
  }
}

std::vector<Coordinator::Impl::StreamPtr> Coordinator::Impl::all_streams() {
  std::vector<StreamPtr> streams;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, stream] : streams_) {
    streams.push_back(stream);
  }
  return streams;
}

StatusOr<std::unique_ptr<Coordinator>> Coordinator::start(CoordinatorConfig config, observe::Journal* journal) {
  auto impl = std::make_unique<Impl>(std::move(config), journal);
  KEEPSTEP_RETURN_IF_ERROR(impl->listen());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;
std::string Coordinator::address() const { return impl_->address(); }
void Coordinator::stop() { impl_->stop(); }
std::vector<brain::NodeId> Coordinator::attending() const { return impl_->attending(); }
std::optional<Coordinator::SizeNews> Coordinator::size_news() const { return impl_->size_news(); }
void Coordinator::take_commands(Commands commands) { impl_->take_commands(std::move(commands)); }
uint64_t Coordinator::refused() const { return impl_->refused_count(); }
uint64_t Coordinator::stale() const { return impl_->stale_count(); }

}  // namespace keepstep::coordinator
