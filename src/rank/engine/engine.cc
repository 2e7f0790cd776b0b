#include "rank/engine/engine.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"
#include "comm/wait_clock.h"
#include "rank/link/comm_config.h"

namespace keepstep::worker {

using brain::Identity;
using brain::StateKind;
using brain::StateWord;
using brain::Step;
using brain::Version;

namespace {

constexpr int kExitAgentLost = 75;
constexpr size_t kMostInjections = 1000;  // not yet looked at
// Once all have formed nobody pulls any more, and goodbyes are on their way, unless a link between two nodes broke.
constexpr int64_t kGoodbyesNs = 5'000'000'000;

uint64_t as_bits(Identity identity) { return uint64_t{identity.term} << 32 | identity.generation; }
Identity from_bits(uint64_t bits) { return {static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits)}; }

std::optional<std::string> capsule_in(const std::byte* memory, Version version) {
  const CapsuleSlot& slot = reinterpret_cast<const WorkerPage*>(memory)->capsule[version % 2];
  if (slot.version_plus_1.load() != version + 1) {
    return std::nullopt;
  }
  const uint64_t bytes = slot.bytes.load();  // stored before the version
  if (bytes > kCapsuleBytes) {
    return std::nullopt;
  }
  return std::string(reinterpret_cast<const char*>(memory + WorkerLayout::capsule(version % 2)), bytes);
}

// Of an activation, from our own agent.
std::vector<brain::ParityBlock> parity_blocks(const nlohmann::json& body) {
  std::vector<brain::ParityBlock> blocks;
  for (const nlohmann::json& block : body.value("parity", nlohmann::json::array())) {
    blocks.push_back({block.at("members"), block.at("row")});
  }
  return blocks;
}

}  // namespace

Engine::Engine(PacketSocket socket, SharedMemory memory, nlohmann::json fingerprint)
    : socket_(std::move(socket)), memory_(std::move(memory)), fingerprint_(std::move(fingerprint)) {}

StatusOr<std::unique_ptr<Engine>> Engine::attach(Fd socket, Fd memory, const nlohmann::json& fingerprint) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory mapped, SharedMemory::attach(std::move(memory), kHeaderBytes));
  std::unique_ptr<Engine> engine(new Engine(PacketSocket(std::move(socket)), std::move(mapped), fingerprint));
  if (engine->page().magic != kWorkerMagic) {
    return absl::InvalidArgumentError("the memory handed to this worker is no worker page of this version of keepstep");
  }
  engine->worker_ = engine->page().worker;
  engine->pid_ = getpid();
  engine->thread_ = std::thread([raw = engine.get()] { raw->run(); });
  std::unique_lock lock(engine->mutex_);
  engine->changed_.wait(lock, [&] { return engine->welcomed_ || engine->ended_.has_value(); });
  if (!engine->welcomed_) {
    return absl::CancelledError(*engine->ended_);
  }
  if (engine->memory_.size() < engine->layout_->bytes) {
    return absl::InvalidArgumentError("the memory handed to this worker is smaller than its layout");
  }
  engine->log_ = LogWriter(engine->memory_.data() + WorkerLayout::kLog);
  engine->capsule_copies_.on_memory([self = engine.get()](int fd) {
    (void)self->send(MessageType::kKept, nlohmann::json::object(), std::span<const int>(&fd, 1));
  });
  return engine;
}

Engine::~Engine() { close(); }

void Engine::close() {
  if (!thread_.joinable()) {
    return;
  }
  if (getpid() != pid_) {
    thread_.detach();  // a forked child of user code: the thread, the socket and the peers are its parent's
    return;
  }
  leave_generation();
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  shutdown(socket_.fd(), SHUT_RDWR);
  thread_.join();
}

void Engine::run() {
  // This thread's life is the worker's: the kernel hands the mutex to the agent the moment it dies.
  KEEPSTEP_CHECK(page().alive.lock() != RobustMutex::Outcome::kFailed, "cannot lock the worker's own life mutex");
  (void)send(MessageType::kAttach, {{"pid", getpid()}, {"fingerprint", fingerprint_}});
  while (true) {
    StatusOr<Packet> packet = socket_.receive();
    if (absl::IsInvalidArgument(packet.status())) {
      complain("dropped a message from its agent", packet.status());
      continue;
    }
    if (!packet.ok()) {
      break;
    }
    StatusOr<Message> message = decode(*packet);
    if (!message.ok()) {
      complain("dropped a message from its agent", message.status());
      continue;
    }
    if (packet->fds_lost) {
      complain(absl::StrFormat("got a message of type %d from its agent", static_cast<int>(message->type)),
               absl::ResourceExhaustedError(Packet::kFdsLost));
    }
    handle(*std::move(message), std::move(packet->fds));
  }
  std::lock_guard lock(mutex_);
  if (!ended_.has_value() && !released_ && !leaving_) {
    std::fprintf(stderr, "keepstep: worker %u (pid %d) ends: its agent is gone, and with it the job on this node\n",
                 worker_, getpid());
    std::fflush(stderr);
    _exit(kExitAgentLost);
  }
  page().alive.unlock();
}

Status Engine::send(MessageType type, nlohmann::json body) { return send(type, std::move(body), {}); }

Status Engine::send(MessageType type, nlohmann::json body, std::span<const int> fds) {
  const Message message{type, node_.load(), from_bits(identity_.load()), std::move(body)};
  const Status status = send_encoded(socket_, encode(message), fds, true);
  if (status.ok() || absl::IsUnavailable(status)) {
    return absl::OkStatus();  // that the agent is gone is what run() finds
  }
  complain("cannot tell its agent", status);
  return status;
}

void Engine::complain(const std::string& what, const Status& why) const {
  std::fprintf(stderr, "keepstep: worker %u (pid %d) %s: %s\n", worker_, getpid(), what.c_str(),
               std::string(why.message()).c_str());
}

void Engine::handle(Message message, std::vector<Fd> fds) {
  std::lock_guard lock(mutex_);
  switch (message.type) {
    case MessageType::kWelcome:
      node_ = message.node;
      welcome_ = std::move(message.body);
      comm_config_ = comm_config_from(welcome_.at("comm"));
      layout_ = std::make_unique<WorkerLayout>(comm_config_);  // a rank table may follow at once
      welcomed_ = true;
      break;
    case MessageType::kInherit:
      inherited_ = fds.empty() ? Fd() : std::move(fds.front());
      break;
    case MessageType::kPrepare:
      if (Status status = prepare(message, std::move(fds)); !status.ok()) {
        std::fprintf(stderr, "keepstep: worker %u cannot enter generation %u: %s\n", worker_,
                     message.identity.generation, std::string(status.message()).c_str());
      }
      break;
    case MessageType::kActivate:
      activation_ = Activation{message.body.at("version"),
                               message.body.at("sources"),
                               message.body.at("targets"),
                               message.body.at("compare"),
                               message.body.value("copies", std::vector<uint32_t>()),
                               message.body.value("copies_from", std::vector<uint32_t>()),
                               parity_blocks(message.body)};
      activation_of_ = message.identity;
      break;
    case MessageType::kInterrupt:
      interrupted_identity_ = std::max(interrupted_identity_, message.identity);
      for (auto& [id, reply] : replies_) {
        reply.interrupted = true;
      }
      break;
    case MessageType::kRelease:
      released_ = true;
      break;
    case MessageType::kEnd:
      ended_ = message.body.value("message", "the job ended");
      break;
    case MessageType::kStoreReply:
      if (auto it = replies_.find(message.body.at("id").get<uint64_t>()); it != replies_.end()) {
        it->second = store_reply(message.body, std::move(fds));
      }
      break;
    case MessageType::kVaultReply:
      if (auto it = vault_replies_.find(message.body.at("id").get<uint64_t>()); it != vault_replies_.end()) {
        std::string error = message.body.value("error", "");
        if (fds.empty() && error.empty()) {
          error = Packet::kFdsLost;
        }
        it->second = {true, std::move(error), fds.empty() ? Fd() : std::move(fds.front())};
      }
      break;
    case MessageType::kNotice:
      notice_ = message.body.value("because", "a notice came");
      notice_came_ = true;
      break;
    case MessageType::kPause:
      stay_ = message.body.value("stay", std::vector<uint32_t>());
      pause_of_ = as_bits(message.identity);
      break;
    case MessageType::kInject:
      if (injections_.size() < kMostInjections) {
        injections_.push_back(message.body.dump());
        injections_came_ = true;
      }
      break;
    default:
      break;
  }
  changed_.notify_all();
}

std::string Engine::notice() const {
  const std::lock_guard lock(mutex_);
  return notice_;
}

std::vector<std::string> Engine::take_injections() {
  std::vector<std::string> taken;
  if (injections_came_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    taken.swap(injections_);
    injections_came_ = false;
  }
  return taken;
}

Status Engine::prepare(const Message& message, std::vector<Fd> fds) {
  if (message.identity <= from_bits(identity_.load()) ||
      (prepared_.has_value() && message.identity <= prepared_->assignment.identity)) {
    return absl::OkStatus();  // a repetition, or older than what we are in
  }
  Prepared prepared;
  prepared.workers = message.body.at("workers").get<std::vector<uint32_t>>();
  const bool several = message.body.contains("nodes");
  if (fds.size() != prepared.workers.size() + (several ? 2 : 1)) {
    return absl::InvalidArgumentError("a rank table whose descriptors do not match its ranks");
  }
  if (comm_config_.max_local != 0 && prepared.workers.size() > comm_config_.max_local) {
    return absl::InvalidArgumentError(absl::StrFormat("a rank table with %d ranks on this node; %d is the most",
                                                      prepared.workers.size(), comm_config_.max_local));
  }
  prepared.assignment.rank = message.body.at("rank");
  if (several) {
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.places, rank_places_from(message.body.at("nodes"), comm_config_.max_world));
    prepared.ranks = message.body.at("ranks").get<std::vector<uint32_t>>();
    prepared.listener = std::move(fds.back());
    KEEPSTEP_RETURN_IF_ERROR(check_places(prepared));
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.key, net::SharedKey::data(message.body.at("data_key").get<std::string>(),
                                                                 message.identity.term, message.identity.generation));
    prepared.protection = message.body.at("data_plane") == "plain" ? comm::Protection::kMac : comm::Protection::kTls;
  } else {
    for (uint32_t rank = 0; rank < prepared.workers.size(); ++rank) {
      prepared.ranks.push_back(rank);
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(prepared.generation,
                            SharedMemory::attach(std::move(fds[0]), generation_page_bytes(comm_config_)));
  const auto& page_of_generation = *reinterpret_cast<const GenerationPage*>(prepared.generation.data());
  const bool across = prepared.places.world() > prepared.workers.size();
  if (page_of_generation.world != prepared.workers.size() || (page_of_generation.across != 0) != across) {
    return absl::InvalidArgumentError("a generation page for other ranks on this node, or elsewhere, than the table's");
  }
  for (size_t i = 0; i < prepared.workers.size(); ++i) {
    const uint32_t peer = prepared.workers[i];
    if (peer != worker_ && !peers_.contains(peer)) {
      KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory mapped, SharedMemory::attach(std::move(fds[i + 1]), layout_->bytes));
      peers_.emplace(peer, std::move(mapped));
    }
  }
  prepared.assignment.identity = message.identity;
  prepared.assignment.world = static_cast<uint32_t>(several ? prepared.places.world() : prepared.workers.size());
  prepared.assignment.version = message.body.at("version");
  prepared.assignment.newcomer = message.body.at("newcomer");
  prepared.assignment.resized = message.body.value("resized", false);
  prepared.assignment.entry = message.body.at("entry");
  prepared.assignment.because = message.body.at("because");
  prepared.assignment.environment = message.body.at("environment");
  prepared.assignment.sharding = message.body.value("sharding", 0U);
  const auto from = message.body.value("from", std::vector<uint32_t>{0, 0});
  if (from.size() != 2) {
    return absl::InvalidArgumentError("a division of the state of which number and size were not given");
  }
  prepared.assignment.from = {from[0], from[1]};
  prepared_ = std::move(prepared);
  return absl::OkStatus();
}

// What the table says of this node must be what else the agent gave us.
Status Engine::check_places(const Prepared& prepared) const {
  const RankPlaces& places = prepared.places;
  const uint32_t self = prepared.assignment.rank;
  if (self >= places.world() || prepared.ranks.size() != prepared.workers.size()) {
    return absl::InvalidArgumentError("a rank table without this rank, or whose ranks do not match its workers");
  }
  std::vector<uint32_t> here;
  for (uint32_t rank = 0; rank < places.world(); ++rank) {
    if (places.nodes[rank] == places.nodes[self]) {
      here.push_back(rank);
    }
  }
  if (here != prepared.ranks) {
    return absl::InvalidArgumentError("a rank table that has other ranks on this node than the agent");
  }
  return absl::OkStatus();
}

std::shared_ptr<comm::Transport> Engine::transport(Prepared& prepared) {
  comm::TcpConfig config{.identity = assignment_.identity,
                         .self = assignment_.rank,
                         .addresses = std::move(prepared.places.addresses),
                         .key = *prepared.key,
                         .protection = prepared.protection};
  return comm::make_tcp_transport(std::move(config), std::move(prepared.listener));
}

void Engine::enter(Prepared prepared) {
  vote_.reset();
  node_vote_.reset();
  const bool divided_anew = sharded_ && assignment_.sharding != prepared.assignment.sharding;
  assignment_ = prepared.assignment;
  identity_ = as_bits(assignment_.identity);
  if (divided_anew) {
    set_state(StateKind::kEmpty, 0);  // what it holds is a part of another division
  }
  members_.assign(assignment_.world, nullptr);
  for (size_t i = 0; i < prepared.workers.size(); ++i) {
    const uint32_t peer = prepared.workers[i];
    members_[prepared.ranks[i]] = peer == worker_ ? memory_.data() : peers_.at(peer).data();
  }
  // Memory of workers that are gone is given back.
  std::erase_if(peers_, [&](const auto& entry) {
    return std::find(prepared.workers.begin(), prepared.workers.end(), entry.first) == prepared.workers.end();
  });
  // The one before may still be looked at by other threads.
  if (generations_.size() > 1) {
    generations_.erase(generations_.begin());
  }
  generations_.push_back(std::move(prepared.generation));
  auto* page_of_generation = reinterpret_cast<GenerationPage*>(generations_.back().data());
  generation_ = page_of_generation;
  const bool across = page_of_generation->across != 0;
  comm::Endpoint endpoint;
  endpoint.self = assignment_.rank;
  std::vector<const WorkerPage*> pages;
  for (std::byte* member : members_) {
    endpoint.arenas.push_back(member == nullptr ? nullptr : member + layout_->arena);
    pages.push_back(reinterpret_cast<const WorkerPage*>(member));
  }
  nodes_ = across ? prepared.places.nodes : std::vector<uint32_t>();
  endpoint.generation = generations_.back().data() + kHeaderBytes;
  endpoint.interrupted = &page_of_generation->interrupted;
  endpoint.progress = &progress().collectives;
  leave_loop();
  if (across) {
    endpoint.nodes = prepared.places.nodes;
    endpoint.transport = transport(prepared);
  }
  std::vector<uint32_t> nodes = endpoint.nodes;
  communicator_ = std::make_shared<comm::Communicator>(comm_config_, std::move(endpoint));
  wants_capsule_ = false;
  silent_source_.clear();
  if (assignment_.resized || assignment_.newcomer) {
    capsule_copies_.forget();  // by ranks of another world, or of a life before
  }
  if (Fd inherited = std::move(inherited_); inherited.valid() && !assignment_.resized) {
    if (StatusOr<KeptCapsules> kept = KeptCapsules::attach(std::move(inherited), kCapsuleBytes); kept.ok()) {
      capsule_copies_.inherit(*std::move(kept));
    } else {
      std::fprintf(stderr, "keepstep: worker %u cannot take over copies of capsules: %s\n", worker_,
                   std::string(kept.status().message()).c_str());
    }
  }
  capsule_copies_.enter(*communicator_, assignment_.rank, std::move(nodes));
  // Told, not raised: a rank that voted stays where it is until the verdict.
  const auto differ = [this](Step step) {
    tell_fault(step, absl::StrFormat("all ranks voted on step %d, but for different things", step), false, true);
  };
  if (across) {
    if (NodeTree tree(prepared.places.nodes, assignment_.rank); tree.leads) {
      const auto broken = [this](Step step, const std::string& what) {
        tell_fault(step, what, !broken_link().empty(), false);
      };
      node_vote_ = std::make_unique<NodeVote>(*communicator_, std::move(tree), pages, broken, differ);
    }
  }
  vote_ = std::make_unique<StepVote>(page(), *page_of_generation, assignment_.identity, node_vote_.get(),
                                     std::move(pages), differ);
  updating_ = false;
  committed_here_ = false;
  committed_ns_ = 0;
  for (DigestSlot& slot : page().digest) {
    slot.step = 0;  // of an attempt that did not count; the words that it was voted with are read
  }
}

void Engine::tell_fault(Step step, const std::string& what, bool link, bool digests) {
  (void)send(
      MessageType::kFault,
      {{"step", step}, {"what", what}, {"traceback", ""}, {"fatal", false}, {"link", link}, {"digests", digests}});
}

bool Engine::superseded() const {
  return interrupted_identity_ >= assignment_.identity || prepared_.has_value() || drained();
}

StatusOr<Assignment> Engine::wait_assignment() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return prepared_.has_value() || ended_.has_value(); });
  if (ended_.has_value()) {
    return absl::CancelledError(*ended_);
  }
  lock.unlock();
  KEEPSTEP_CHECK(communicator_.use_count() <= 1, "somebody still uses the communicator of the previous generation");
  leave_generation();  // its threads may just wait for the agent, and need the lock to stop
  lock.lock();
  Prepared prepared = std::move(*prepared_);  // there still, or a newer one
  prepared_.reset();
  enter(std::move(prepared));
  return assignment_;
}

StatusOr<Activation> Engine::ready(bool sharded) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  vote_->open(assignment_.version);
  if (generation()->sealing.load() != 0) {
    // The agent may have sealed the old word just before we opened the new one: seal it ourselves.
    page().word.fetch_or(brain::kSealedBit);
    return absl::AbortedError("the generation was interrupted before it formed");
  }
  sharded_ = sharded;
  const StateWord word = state();
  (void)send(MessageType::kReady, {{"state", static_cast<int>(word.kind)},
                                   {"version", word.version},
                                   {"sharded", sharded},
                                   {"ns", monotonic_ns()}});
  std::unique_lock lock(mutex_);
  KEEPSTEP_RETURN_IF_ERROR(
      wait_in_generation(lock, [&] { return activation_.has_value() && activation_of_ == assignment_.identity; }));
  return *activation_;
}

Status Engine::form() {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  leave_sources();
  KEEPSTEP_RETURN_IF_ERROR(share_capsules());
  GenerationPage& gen = *generation();
  const bool last_here = gen.formed.fetch_add(1) + 1 == gen.world;
  ring(gen);
  const auto all_here = [&] { return gen.formed.load() == gen.world; };
  bool tell = last_here && gen.across == 0;
  if (node_vote_ != nullptr) {
    if (wait_until(gen, all_here) && node_vote_->form()) {
      gen.formed_everywhere.store(1);
      ring(gen);
      tell = node_vote_->root();
    }
  }
  if (tell) {
    (void)send(MessageType::kFormed, {{"ns", monotonic_ns()}});
  }
  const bool formed =
      gen.across == 0 ? wait_until(gen, all_here) : wait_until(gen, [&] { return gen.formed_everywhere.load() != 0; });
  return formed ? absl::OkStatus() : absl::AbortedError("the generation was interrupted while it formed");
}

Status Engine::wait_interruption(brain::WaitsIn what) {
  const Waiting waiting(progress(), what);
  std::unique_lock lock(mutex_);
  const Status status = wait_in_generation(lock, [] { return false; });
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

bool Engine::drained() const {
  const GenerationPage* gen = generation();
  return gen != nullptr && gen->interrupted.load(std::memory_order_relaxed) != 0;
}

bool Engine::interrupted() const { return drained() && !released_.load(std::memory_order_relaxed); }

void Engine::set_state(StateKind kind, Version version) {
  page().state.store(brain::pack(StateWord{kind, version}), std::memory_order_seq_cst);
}

StateWord Engine::state() const { return brain::unpack_state_word(page().state.load()); }

Status Engine::publish(std::string manifest, std::vector<state::Region> regions) {
  source_ = std::make_unique<state::Source>(memory_.data() + layout_->hydration, copy_, &generation()->interrupted);
  KEEPSTEP_RETURN_IF_ERROR(
      source_->publish(assignment_.identity, assignment_.version, std::move(manifest), std::move(regions)));
  serve_elsewhere();
  return absl::OkStatus();
}

void Engine::stop_publishing() {
  if (remote_source_ != nullptr && !remote_source_->finish(kGoodbyesNs)) {
    remote_source_.reset();
  }
  source_.reset();
}

state::Puller Engine::puller(const Activation& activation) {
  std::vector<state::Place> sources;
  for (uint32_t rank : own_sources(activation)) {
    sources.push_back(place_of(rank));
  }
  return state::Puller(sources, assignment_.rank, copy_, &generation()->interrupted);
}

StatusOr<std::string> Engine::pull_manifest(const Activation& activation) {
  StatusOr<std::string> manifest = puller(activation).manifest(assignment_.identity);
  if (!manifest.ok()) {
    note_silent_sources();
  }
  return manifest;
}

StatusOr<state::Pulled> Engine::pull(const Activation& activation, const std::vector<state::Region>& regions) {
  std::vector<uint32_t> sources = own_sources(activation);
  const std::vector<uint32_t> siblings = this->siblings(activation);
  state::Sharing sharing{.publish = [&] {
    source_ = std::make_unique<state::Source>(memory_.data() + layout_->hydration, copy_, &generation()->interrupted);
    return source_->publish(assignment_.identity, activation.version, "", regions);
  }};
  for (const uint32_t rank : siblings) {
    const bool self = rank == assignment_.rank;
    sharing.siblings.push_back(self ? nullptr : members_.at(rank) + layout_->hydration);
    if (!self) {
      sources.push_back(rank);
    }
  }
  StatusOr<state::Pulled> result = puller(activation)
                                       .pull(assignment_.identity, activation.version, regions, activation.compare,
                                             siblings.empty() ? nullptr : &sharing);
  if (!result.ok()) {
    source_.reset();  // the tensors are the caller's again
    note_silent_sources();
    return result.status();
  }
  const state::Pulled& pulled = *result;
  (void)send(MessageType::kHydrated, {{"bytes", pulled.bytes},
                                      {"skipped", pulled.bytes_skipped},
                                      {"seconds", static_cast<double>(pulled.duration_ns) * 1e-9},
                                      {"repeated", pulled.chunks_repeated},
                                      {"sources", sources},
                                      {"bytes_from", pulled.bytes_by_source}});
  return pulled;
}

StatusOr<Version> Engine::wait_verdict() {
  GenerationPage& gen = *generation();
  while (true) {
    const uint32_t seen = gen.bell.load();
    switch (gen.verdict_ready.load()) {
      case 1:
        return gen.verdict_version.load();
      case 2:
        return absl::CancelledError("the job ended");
      default:
        wait_bell(gen, seen);
    }
  }
}

VoteResult Engine::vote(Step step, uint32_t flags) {
  comm::WaitClock& waits = communicator_->waits();
  waits.begin(0, monotonic_ns());
  flags |= notice_came_.load(std::memory_order_relaxed) ? uint32_t{kFlagDrain} : 0U;
  flags |= pause_asked() ? uint32_t{kFlagPause} : 0U;
  const VoteResult result = vote_->vote(step, flags);
  waits.end(monotonic_ns());
  return result;
}

void Engine::begin_update(Step step) {
  progress().place.store(pack_place(step, 0, brain::StepPhase::kUpdate), std::memory_order_relaxed);
  set_state(StateKind::kUpdating, step - 1);
  updating_ = true;
}

bool Engine::end_update(Step step) {
  updating_ = false;
  set_state(StateKind::kClean, step);
  const bool open = vote_->close(step);
  CommitRecord record{.step = step, .identity = assignment_.identity, .committed_ns = monotonic_ns()};
  const int64_t waited_ns = communicator_->waits().total_ns();
  if (committed_ns_ != 0) {
    record.computed_ns = std::max<int64_t>(record.committed_ns - committed_ns_ - (waited_ns - waited_ns_), 1);
  }
  committed_ns_ = record.committed_ns;
  waited_ns_ = waited_ns;
  record.digest = load_digest(page(), step);
  progress().committed_ns.store(record.committed_ns, std::memory_order_relaxed);
  progress().committed.store(step, std::memory_order_release);
  at(step + 1, 0);
  const LossSlot& slot = page().loss[step % 2];
  if (slot.step.load() == step) {
    record.has_loss = true;
    record.loss_sum = slot.sum.load();
    record.micro_batches = slot.micro_batches.load();
  }
  if (generation()->across != 0) {
    // An agent has the losses of its own ranks only.
    record.mean = mean_loss(step);
    record.has_mean = !std::isnan(record.mean);
  }
  make_room();
  log_.commit(record);
  if (!std::exchange(committed_here_, true)) {
    (void)send(MessageType::kCollect);  // others wait to hear that this generation goes on
  }
  return open;
}

Status Engine::log(Step step, std::string_view values) {
  if (values.size() > kMaxLogTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the values logged for step %d take %d bytes as JSON, %d is the "
                        "most; log less at once",
                        step, values.size(), kMaxLogTextBytes));
  }
  make_room();
  log_.log(step, values);
  return absl::OkStatus();
}

void Engine::make_room() {
  while (!log_.has_room()) {
    (void)send(MessageType::kCollect);
    log_.wait_for_room();
  }
}

void Engine::record_loss(Step step, double sum, uint64_t micro_batches) {
  LossSlot& slot = page().loss[step % 2];
  slot.step = 0;  // a reader never takes half of one step and half of another
  slot.sum = sum;
  slot.micro_batches = micro_batches;
  slot.step = step;
}

double Engine::mean_loss(Step step) const {
  if (generation()->across != 0) {
    return load_mean(*generation(), step);
  }
  double sum = 0;
  uint64_t count = 0;
  for (const std::byte* member : members_) {
    const LossSlot& slot = reinterpret_cast<const WorkerPage*>(member)->loss[step % 2];
    if (slot.step.load() == step) {
      sum += slot.sum.load();
      count += slot.micro_batches.load();
    }
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

Status Engine::save_capsule(Version version, std::string_view bytes) {
  if (bytes.size() > kCapsuleBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the per-rank values that forward changes take %d bytes, %d is the most; protect large buffers "
                        "that forward does not change as state",
                        bytes.size(), kCapsuleBytes));
  }
  CapsuleSlot& slot = page().capsule[version % 2];
  slot.version_plus_1 = 0;
  std::memcpy(memory_.data() + WorkerLayout::capsule(version % 2), bytes.data(), bytes.size());
  slot.bytes = bytes.size();
  slot.version_plus_1 = version + 1;
  return absl::OkStatus();
}

// The lowest rank of this node that has one.
std::optional<std::string> Engine::neighbours_capsule(Version version) const {
  for (const std::byte* member : members_) {  // null: on another node
    std::optional<std::string> found = member == nullptr ? std::nullopt : capsule_in(member, version);
    if (found.has_value()) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<std::string> Engine::load_capsule(Version version) const { return capsule_in(memory_.data(), version); }

void Engine::at(Step step, uint64_t micro_batch) {
  const brain::StepPhase phase = micro_batch == 0 ? brain::StepPhase::kBetween : brain::StepPhase::kMicroBatch;
  progress().place.store(pack_place(step, micro_batch, phase), std::memory_order_relaxed);
}

void Engine::leave_loop() {
  progress().place.store(pack_place(0, 0, brain::StepPhase::kOutside), std::memory_order_relaxed);
}

void Engine::slow(int change) {
  std::atomic<uint32_t>& depth = progress().slow;
  depth.store(depth.load(std::memory_order_relaxed) + static_cast<uint32_t>(change), std::memory_order_relaxed);
}

// Nodes. Another rank's vote may have said that all pause before our agent does.
StatusOr<std::vector<uint32_t>> Engine::who_stays() {
  std::unique_lock lock(mutex_);
  KEEPSTEP_RETURN_IF_ERROR(wait_in_generation(lock, [this] { return pause_asked(); }));
  return stay_;
}

Status Engine::pause() {
  leave_loop();
  (void)send(MessageType::kPaused);
  return wait_interruption(brain::WaitsIn::kPause);
}

Status Engine::finish(bool on_notice) {
  const Waiting waiting(progress(), brain::WaitsIn::kEnd);
  if (shard_replicas_ != nullptr) {
    shard_replicas_->finish();
  }
  (void)send(MessageType::kFinished, {{"notice", on_notice}});
  std::unique_lock lock(mutex_);
  // What the page says may be of one that died after the release, which is still on its way here: the messages tell.
  while (!released_) {
    if (ended_.has_value()) {
      return absl::CancelledError(*ended_);
    }
    if (interrupted_identity_ >= assignment_.identity || prepared_.has_value()) {
      return absl::AbortedError("the generation was interrupted");
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  return absl::OkStatus();
}

StatusOr<StoreReply> Engine::store(const std::string& op, const std::string& key, const std::string& value,
                                   int64_t timeout_ms, bool ends_with_generation) {
  std::unique_lock lock(mutex_);
  const uint64_t id = next_request_++;
  lock.unlock();
  KEEPSTEP_ASSIGN_OR_RETURN(const StoreMessage request, store_request(id, op, key, value));
  lock.lock();
  replies_[id] = StoreReply{};
  lock.unlock();
  const Status sent = send(MessageType::kStore, request.body, request.fds());
  lock.lock();
  if (!sent.ok()) {
    replies_.erase(id);
    return sent;
  }
  std::optional<Waiting> waiting;
  const bool main_thread = gettid() == pid_;
  const std::shared_ptr<comm::Communicator> communicator = main_thread ? communicator_ : nullptr;
  if (main_thread) {
    waiting.emplace(progress(), brain::WaitsIn::kStore);
  }
  if (communicator != nullptr) {
    communicator->waits().begin(0, monotonic_ns());
  }
  const auto done = [&] {
    StoreReply& reply = replies_[id];
    // Also what is asked after the seal: a peer that is gone will never set it.
    reply.interrupted = reply.interrupted || (generation() != nullptr && superseded());
    return reply.answered || (reply.interrupted && ends_with_generation) || ended_.has_value();
  };
  if (timeout_ms < 0) {
    changed_.wait(lock, done);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
  }
  if (communicator != nullptr) {
    communicator->waits().end(monotonic_ns());
  }
  StoreReply reply = std::move(replies_[id]);
  replies_.erase(id);
  if (!reply.error.empty()) {
    return absl::ResourceExhaustedError(reply.error);
  }
  reply.interrupted = reply.interrupted || ended_.has_value();
  return reply;
}

}  // namespace keepstep::worker
