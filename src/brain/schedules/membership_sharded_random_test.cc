// The coordinator's and agents' brains with sharded state in an elastic job: nodes that keep copies, join, leave and
// are lost, and ranks that die at any instant. Whatever happens, a generation that forms finds every shard of its
// version, all from one history; at most one step is redone, and only losing more nodes than the copies allow costs
// more.
//   KEEPSTEP_SEED=41 keepstep_brain_test --gtest_filter='*ShardedSchedules*'
// KEEPSTEP_SCHEDULES=1000000 runs more of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include "brain/membership/membership.h"
#include "brain/node/node.h"
#include "brain/simulation.h"

namespace keepstep::brain::simulation {
namespace {

constexpr int64_t kMs = 1000;
constexpr int64_t kDeadline = 60'000 * kMs;
constexpr uint64_t kNothing = ~uint64_t{0};

struct Process {
  NodeId node = 0;
  bool alive = true;
  Rank rank = 0;
  Identity identity;      // of the generation that it entered
  uint32_t sharding = 0;  // what it was built for
  StateKind kind = StateKind::kEmpty;
  Version version = 0;
  uint64_t content = 0;  // of its state: the same number on all ranks with the same history
  Vote vote = Vote::kOpen;
  Step step = 0;  // the step it votes on
};

// As in memory: the two slots of a rank's vault.
struct Vault {
  std::map<Version, uint64_t> slots;  // by version modulo 2: ...
  std::map<Version, Version> version_in;
  void put(Version version, uint64_t content) {
    slots[version % 2] = content;
    version_in[version % 2] = version;
  }
  uint64_t at(Version version) const {
    const auto found = version_in.find(version % 2);
    return found != version_in.end() && found->second == version ? slots.at(version % 2) : kNothing;
  }
  void drop_beyond(Version version) {
    for (auto it = version_in.begin(); it != version_in.end();) {
      it = it->second > version ? version_in.erase(it) : std::next(it);
    }
  }
};

struct Node {
  explicit Node(NodeId id) : brain(id) {}
  NodeBrain brain;
  Identity sealed;                                    // the newest page that is
  std::map<std::pair<uint32_t, Rank>, Vault> vaults;  // by sharding and rank
};

class ShardedSchedule {
 public:
  explicit ShardedSchedule(uint64_t seed, bool trace) : loop_(seed), trace_(trace) {
    config_.nodes = 1 + static_cast<uint32_t>(loop_.below(3));
    config_.max_nodes = config_.nodes + static_cast<uint32_t>(loop_.below(3));
    config_.ranks_per_node = 1 + static_cast<uint32_t>(loop_.below(3));
    config_.ranks_per_replica = loop_.below(3) == 0 ? config_.ranks_per_node : 1;
    config_.repeat_after = std::chrono::milliseconds(20);
    config_.node_timeout = std::chrono::seconds(3600);
    config_.ladder = LadderConfig{100000, 100000, 100000, 100000, 100000};
    config_.ladder.faults_per_node = 100000;
    config_.start_failures = 100000;
    config_.start_grace = {};
    ElasticConfig elastic;
    elastic.max_replicas = config_.max_nodes * config_.ranks_per_node / config_.ranks_per_replica;
    elastic.scaling_timeout = some_time(20);
    elastic.graceful_shutdown_timeout = some_time(100);
    elastic.faulty_scale_down_timeout = some_time(40);
    elastic.scale_up_snooze = some_time(20);
    elastic.min_between_changes = some_time(20);
    config_.elastic = elastic;
    target_ = 15 + loop_.below(10);
    quiet_from_ = static_cast<int64_t>(loop_.below(200)) * kMs;
    brain_ = std::make_unique<Membership>(config_);
  }

  void run() {
    for (uint32_t i = 0; i < config_.nodes; ++i) {
      join();
    }
    every(5 * kMs, [this] { feed(Tick{}); });
    loop_.after(10 * kMs, [this] { disturb(); });
    while (!ended_) {
      must(loop_.now() < kDeadline, "training did not reach its target although nothing disturbed it any more");
      must(loop_.run_one(), "nothing happens any more");
    }
    must(writing_.empty(), "the job ended although a rank still writes its last files");
    must(newest_ == target_, "the job ended before its last step");
    if (ended_->message.find("after the training function had returned") != std::string::npos) {
      ++paths["death after the release"];
      return;
    }
    must(ended_->exit_code == 0, "the job ended with: " + ended_->message);
  }

  std::map<std::string, uint64_t> paths;

 private:
  Time some_time(uint64_t max_ms) { return std::chrono::milliseconds(loop_.below(max_ms + 1)); }
  int64_t soon() { return 10 + static_cast<int64_t>(loop_.below(loop_.below(8) == 0 ? 5000 : 300)); }
  void every(int64_t us, const std::function<void()>& what) {
    loop_.after(us, [this, us, what] {
      what();
      every(us, what);
    });
  }

  // ---- what happens to the job ----
  void join() {
    const NodeId id = next_node_++;
    nodes_.emplace(id, Node(id));
    feed(NodeJoined{id, {ipv4(10, 0, 0, static_cast<uint8_t>(id)), 20000}});
  }

  void disturb() {
    if (loop_.now() >= quiet_from_) {
      if (nodes_.size() < config_.nodes) {
        join();
      }
      feed(ScaleRequested{});
      return;
    }
    switch (loop_.below(8)) {
      case 0:
      case 1:
      case 2:
        kill_somebody();
        break;
      case 3:
        lose_a_node();
        break;
      case 4:
        if (nodes_.size() < config_.max_nodes) {
          join();
        }
        break;
      case 5:
        if (const NodeId node = another_node(); node != 0) {
          feed(NodeLeaves{node, "SIGTERM"});
        }
        break;
      case 6:
        feed(ScaleRequested{1 + static_cast<uint32_t>(loop_.below(config_.elastic->max_replicas))});
        break;
      default:
        feed(ScaleRequested{});
    }
    loop_.after(static_cast<int64_t>(loop_.below(25)) * kMs, [this] { disturb(); });
  }

  NodeId another_node() {
    std::vector<NodeId> ids;
    for (const auto& [id, node] : nodes_) {
      if (id != 0) {
        ids.push_back(id);
      }
    }
    return ids.empty() ? 0 : ids[loop_.below(ids.size())];
  }

  void kill_somebody() {
    std::vector<WorkerId> living;
    for (const auto& [id, process] : processes_) {
      if (process.alive) {
        living.push_back(id);
      }
    }
    if (!living.empty()) {
      die(living[loop_.below(living.size())]);
    }
  }

  void die(WorkerId id) {
    Process& process = processes_.at(id);
    if (!process.alive) {
      return;
    }
    process.alive = false;
    writing_.erase(id);
    ++paths["death"];
    loop_.after(soon(), [this, id] {
      tell_agent(processes_.at(id).node, WorkerDied{id, 100 + int64_t{id}, 9, 0, "pidfd", ""});
    });
  }

  // Copies are on two nodes: one may be lost, until all shards have their copies again.
  void lose_a_node() {
    const NodeId lost = another_node();
    if (lost == 0) {
      return;
    }
    if (holds_copies(lost)) {
      if (at_risk_) {
        return;
      }
      at_risk_ = true;
      ++paths["node lost"];
    }
    for (auto& [id, process] : processes_) {
      if (process.node == lost) {
        process.alive = false;
        writing_.erase(id);
      }
    }
    nodes_.erase(lost);
    feed(NodeLost{lost, "it is gone"});
  }

  bool holds_copies(NodeId node) const { return !nodes_.at(node).vaults.empty(); }

  // ---- the nodes ----
  void feed(const Event& event) {
    loop_.after(1, [this, event] {
      if (ended_) {
        return;
      }
      const Effects effects = brain_->step(event, std::chrono::microseconds(loop_.now()));
      for (const Effect& effect : effects) {
        std::visit([this](const auto& what) { carry_out(what); }, effect);
      }
    });
  }

  // A coordinator's order to one node or to all.
  template <typename Order>
  void carry_out(const Order& order) {
    if constexpr (std::is_same_v<Order, Prepare>) {
      begin(order);
    } else if constexpr (std::is_same_v<Order, Pause>) {
      pause_.insert(order.identity.generation);
      stay_ = order.stay;
    }
    for (const NodeId id : receivers(order)) {
      Order part = order;
      if constexpr (std::is_same_v<Order, Prepare>) {
        std::erase_if(part.members, [id](const Member& member) { return member.node != id; });
      }
      tell_agent(id, part);
    }
  }

  template <typename Order>
  std::vector<NodeId> receivers(const Order& order) const {
    if constexpr (requires { order.node; }) {
      return {order.node};
    }
    std::vector<NodeId> all;
    for (const auto& [id, node] : nodes_) {
      all.push_back(id);
    }
    return all;
  }

  // ---- the agents: the shell around their brain ----
  void tell_agent(NodeId id, const NodeEvent& event) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end()) {
      return;
    }
    for (const NodeEffect& effect : node->second.brain.step(event, std::chrono::microseconds(loop_.now()))) {
      std::visit([&](const auto& what) { carry_out(id, node->second, what); }, effect);
    }
  }

  void carry_out(NodeId, Node&, const Tell& tell) { feed(tell.event); }

  void carry_out(NodeId id, Node&, const StartWorker& start) {
    const WorkerId worker = start.spawn.worker;
    processes_[worker].node = id;
    loop_.after(soon(), [this, worker] {
      if (processes_.at(worker).alive) {
        feed(WorkerRecoverable{worker});
        feed(WorkerParked{worker, 100 + int64_t{worker}});
      }
    });
  }

  void carry_out(NodeId, Node&, const KillProcess& kill) { die(kill.worker); }

  void carry_out(NodeId id, Node& node, const SealWords& seal) {
    node.sealed = seal.identity;
    Sealed answer{id, seal.identity, {}};
    for (const Holder& holder : seal.holders) {
      const Process& process = processes_.at(holder.worker);
      SealedWord word{holder.rank, holder.worker, {}, {process.kind, process.version}};
      word.word = {process.identity, process.step, process.vote, false};
      answer.words.push_back(word);
    }
    for (const auto& [key, vault] : node.vaults) {
      for (const auto& [slot, version] : vault.version_in) {
        answer.copies.push_back({key.second, version, key.first});
      }
    }
    loop_.after(soon(), [this, id, answer] {
      if (nodes_.contains(id)) {
        feed(answer);
      }
    });
  }

  void carry_out(NodeId id, Node&, const Announce& announce) {
    const Identity identity = announce.decide.identity;
    const Version version = announce.decide.verdict.version;
    for (auto& [worker, process] : processes_) {
      const bool voted = process.identity == identity && process.step == version && process.vote != Vote::kOpen;
      if (process.alive && process.node == id && voted && process.version + 1 == version &&
          process.kind == StateKind::kClean) {
        apply(process);
      }
    }
  }

  void carry_out(NodeId id, Node&, const Assign& assign) {
    loop_.after(soon(), [this, id, member = assign.member, identity = prepared_->identity] {
      Process& process = processes_.at(member.worker);
      if (!process.alive || sealed(process, identity) || process.identity >= identity) {
        return;
      }
      process.identity = identity;
      process.rank = member.rank;
      process.step = prepared_->version + 1;
      process.vote = Vote::kOpen;
      if (process.sharding != prepared_->sharding.number) {
        process.sharding = prepared_->sharding.number;
        process.kind = StateKind::kEmpty;
        process.version = 0;
      }
      tell_agent(id, MemberReady{identity, {member.worker, {process.kind, process.version}, true}});
      loop_.after(soon(), [this, id] { tell_agent(id, Tick{}); });
    });
  }

  void carry_out(NodeId, Node& node, const Forget& forget) {
    for (auto& [key, vault] : node.vaults) {
      if (forget.beyond) {
        vault.drop_beyond(*forget.beyond);
      }
    }
    std::erase_if(node.vaults, [&](const auto& each) { return each.first.first < forget.before; });
  }

  void carry_out(NodeId id, Node&, const GoOn& go) {
    if (!go.first) {
      return;
    }
    for (const Member& member : prepared_->members) {
      if (member.node == id) {
        loop_.after(soon(), [this, member, identity = go.activate.identity] { hydrate(member, identity); });
      }
    }
  }

  void carry_out(NodeId, Node&, const TellRelease& release) {
    for (const WorkerId id : release.workers) {
      if (!processes_.at(id).alive || !released_.insert(id).second) {
        continue;
      }
      writing_.insert(id);
      loop_.after(soon(), [this, id] {
        if (processes_.at(id).alive) {
          processes_.at(id).alive = false;
          writing_.erase(id);
          tell_agent(processes_.at(id).node, WorkerExited{id});
        }
      });
    }
  }

  // What follows here from words and vaults needs none of these.
  void carry_out(NodeId, Node&, const Interrupt&) {}
  void carry_out(NodeId, Node&, const Begin&) {}
  void carry_out(NodeId, Node&, const Inherit&) {}
  void carry_out(NodeId, Node&, const ForgetCapsules&) {}
  void carry_out(NodeId, Node&, const ForgetUnused&) {}  // ranks here ask for their vaults in each step
  void carry_out(NodeId, Node&, const TellPause&) {}
  void carry_out(NodeId, Node&, const HasFormed&) {}
  void carry_out(NodeId, Node&, const FreeMemory&) {}
  void carry_out(NodeId, Node&, const Close&) {}

  bool sealed(const Process& process, Identity identity) const {
    const auto node = nodes_.find(process.node);
    return node == nodes_.end() || node->second.sealed >= identity;
  }

  // The state after a step of a generation.
  static uint64_t after(uint64_t content, Identity identity, Step step) {
    return content * 1'000'003 + identity.generation * 1009 + step;
  }
  void apply(Process& process) {
    process.content = after(process.content, process.identity, process.step);
    process.version = process.step;
    process.kind = StateKind::kClean;
  }

  void begin(const Prepare& prepare) {
    if (prepared_ && prepared_->identity == prepare.identity) {
      return;
    }
    must(prepare.version + 1 >= newest_ || restarted_, "more than a step is done again");
    if (prepare.version < newest_) {
      ++paths["a step is done again"];
    }
    if (prepared_ && prepare.sharding != prepared_->sharding) {
      ++paths["divided anew"];
    }
    if (prepare.from != prepare.sharding) {
      ++paths["from another division"];
    }
    restarted_ = false;
    newest_ = prepare.version;
    prepared_ = prepare;
    hydrated_.clear();
    pause_.clear();
    paused_ = false;
    decided_step_ = 0;
  }

  void hydrate(const Member& member, Identity identity) {
    Process& process = processes_.at(member.worker);
    if (!process.alive || sealed(process, identity)) {
      return;
    }
    const Version version = prepared_->version;
    const bool clean = process.kind == StateKind::kClean && process.version == version;
    if (!clean && version > 0) {
      process.content = shard(prepared_->sharding.number, member.rank, version);
      if (process.content == kNothing && prepared_->from != prepared_->sharding) {
        for (Rank rank = 0; rank < prepared_->from.world; ++rank) {
          const uint64_t part = shard(prepared_->from.number, rank, version);
          must(rank == 0 || part == process.content || part == kNothing, "shards of two histories");
          process.content = part;
          if (part == kNothing) {
            break;
          }
        }
      }
      if (process.content == kNothing && lost_since_prepared()) {
        return;  // the rank that had it has died: the generation will not form
      }
      must(process.content != kNothing, "a generation was let form although a shard is nowhere");
    } else if (!clean) {
      process.content = 0;
    }
    process.version = version;
    process.kind = StateKind::kClean;
    hydrated_.insert(member.rank);
    if (hydrated_.size() < prepared_->members.size()) {
      return;
    }
    std::optional<uint64_t> one;
    for (const Member& each : prepared_->members) {
      const Process& other = processes_.at(each.worker);
      must(!one || *one == other.content || !other.alive, "ranks begin with two histories");
      one = other.content;
      keep(each.rank, other.node, version, other.content);
    }
    tell_agent(prepared_->members.front().node, Formed{identity});
    for (const Member& each : prepared_->members) {
      if (version >= target_) {
        feed(WorkerFinished{each.worker, identity});
      } else {
        loop_.after(soon(), [this, each, identity] { copy(each, identity); });
      }
    }
  }

  bool lost_since_prepared() const {
    return std::any_of(prepared_->members.begin(), prepared_->members.end(), [this](const Member& member) {
      return !processes_.at(member.worker).alive || !nodes_.contains(member.node);
    });
  }

  // Only on nodes of members: no other node serves it.
  uint64_t shard(uint32_t sharding, Rank rank, Version version) const {
    for (const Member& member : prepared_->members) {
      const auto node = nodes_.find(member.node);
      if (node == nodes_.end()) {
        continue;
      }
      const auto vault = node->second.vaults.find({sharding, rank});
      if (vault != node->second.vaults.end() && vault->second.at(version) != kNothing) {
        return vault->second.at(version);
      }
    }
    return kNothing;
  }

  void keep(Rank rank, NodeId node, Version version, uint64_t content) {
    if (nodes_.contains(node)) {
      nodes_.at(node).vaults[{prepared_->sharding.number, rank}].put(version, content);
    }
  }

  // ---- a step ----
  NodeId keeper_of(const Member& member) const {
    std::vector<NodeId> nodes;
    for (const Member& each : prepared_->members) {
      if (std::find(nodes.begin(), nodes.end(), each.node) == nodes.end()) {
        nodes.push_back(each.node);
      }
    }
    const auto own = std::find(nodes.begin(), nodes.end(), member.node) - nodes.begin();
    return nodes[static_cast<size_t>(own + 1) % nodes.size()];
  }

  // The copy of a rank's version is whole, here and at its keeper; then the rank votes, or waits for the world to
  // change.
  void copy(const Member& member, Identity identity) {
    Process& process = processes_.at(member.worker);
    if (!process.alive || sealed(process, identity)) {
      return;
    }
    keep(member.rank, member.node, process.version, process.content);
    if (!nodes_.contains(keeper_of(member))) {
      return;  // the rank waits, and the job will learn of the loss
    }
    loop_.after(soon(), [this, member, identity] {
      Process& rank = processes_.at(member.worker);
      if (!rank.alive || sealed(rank, identity) || !nodes_.contains(keeper_of(member))) {
        return;
      }
      keep(member.rank, keeper_of(member), rank.version, rank.content);
      if (paused_) {
        wait_for_change(member, identity);
      } else {
        vote(member, identity);
      }
    });
  }

  void wait_for_change(const Member& member, Identity identity) {
    const bool stays = std::binary_search(stay_.begin(), stay_.end(), member.node) ||
                       std::binary_search(stay_.begin(), stay_.end(), keeper_of(member));
    if (!stays && !stay_.empty() && nodes_.contains(stay_.front())) {
      ++paths["handed over"];
      const Process& rank = processes_.at(member.worker);
      keep(member.rank, stay_.front(), rank.version, rank.content);
    }
    feed(WorkerPaused{member.worker, identity});
  }

  void vote(const Member& member, Identity identity) {
    Process& process = processes_.at(member.worker);
    process.step = process.version + 1;
    process.vote = Vote::kYes;
    const bool all = std::all_of(prepared_->members.begin(), prepared_->members.end(), [&](const Member& each) {
      const Process& other = processes_.at(each.worker);
      return other.alive && other.identity == identity && other.step == process.step && other.vote == Vote::kYes;
    });
    if (!all || decided_step_ == process.step) {
      return;
    }
    // Rank 0 records it before anybody else learns of it.
    decided_step_ = process.step;
    Process& first = processes_.at(prepared_->members.front().worker);
    first.vote = Vote::kDecided;
    newest_ = process.step;
    at_risk_ = false;  // all copies of the previous version are whole
    paused_ = pause_.contains(identity.generation);
    settle(identity);
    for (const Member& each : prepared_->members) {
      loop_.after(soon(), [this, each, identity] { update(each, identity); });
    }
  }

  // The agents learn of the step, and forget other shardings.
  void settle(Identity identity) {
    if (decided_step_ < prepared_->version + 2 || sealed(processes_.at(prepared_->members.front().worker), identity)) {
      return;
    }
    for (const NodeId id : receivers(Seal{})) {
      tell_agent(id, Settled{prepared_->sharding.number});
    }
  }

  void update(const Member& member, Identity identity) {
    Process& process = processes_.at(member.worker);
    if (!process.alive || sealed(process, identity)) {
      return;
    }
    process.vote = Vote::kDecided;
    apply(process);
    feed(Progress{identity, process.version});
    if (process.version >= target_) {
      feed(WorkerFinished{member.worker, identity});
      return;
    }
    loop_.after(soon(), [this, member, identity] { copy(member, identity); });
  }

  void carry_out(const ReleaseNode& part) {
    for (auto& [id, process] : processes_) {
      process.alive = process.alive && process.node != part.node;
    }
    nodes_.erase(part.node);
    ++paths["node left"];
  }

  void carry_out(const EndJob& end) { ended_ = end; }

  void carry_out(const Journal& journal) {
    if (trace_) {
      std::cerr << loop_.now() << " " << journal.event << ": " << journal.because << "\n";
    }
    if (journal.event == "restart") {
      // More was lost than copies allow, or everything built was lost before the first copy.
      must(newest_ == 0 || more_lost_than_copies(), "a restart although every shard was left");
      restarted_ = true;
    }
    if (journal.event == "resized") {
      at_risk_ = true;  // nodes without ranks serve nothing: until the next step it is as if they were lost
    }
    if (journal.event == "resize_postponed") {
      ++paths["postponed"];
    }
  }

  // Of the newest version and the previous one, in either sharding.
  bool more_lost_than_copies() const {
    if (!prepared_) {
      return true;
    }
    for (const Sharding& sharding : {prepared_->sharding, prepared_->from}) {
      for (const Version version : {newest_, newest_ - 1}) {
        bool all = true;
        for (Rank rank = 0; rank < sharding.world; ++rank) {
          all &= std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
            const auto vault = node.second.vaults.find({sharding.number, rank});
            return vault != node.second.vaults.end() && vault->second.at(version) != kNothing;
          });
        }
        if (all) {
          return false;
        }
      }
    }
    return true;
  }

  Loop loop_;
  const bool trace_;
  MembershipConfig config_;
  std::unique_ptr<Membership> brain_;
  Version target_ = 0;
  int64_t quiet_from_ = 0;
  std::map<NodeId, Node> nodes_;
  NodeId next_node_ = 0;
  std::map<WorkerId, Process> processes_;
  std::optional<Prepare> prepared_;
  std::set<WorkerId> released_;
  std::set<WorkerId> writing_;  // released ranks that have not ended yet
  std::set<Rank> hydrated_;
  std::set<uint32_t> pause_;  // generations that were told to pause
  std::vector<NodeId> stay_;
  bool paused_ = false;  // the step just decided is the last one
  Step decided_step_ = 0;
  Version newest_ = 0;    // decided
  bool at_risk_ = false;  // a node was lost, and not every shard has two copies again yet
  bool restarted_ = false;
  std::optional<EndJob> ended_;
};

TEST(ShardedSchedules, a_generation_forms_with_every_shard_and_at_most_a_step_is_done_again) {
  const bool one = std::getenv("KEEPSTEP_SEED") != nullptr;
  const uint64_t first = number_from("KEEPSTEP_SEED", 1);
  const uint64_t schedules = one ? 1 : number_from("KEEPSTEP_SCHEDULES", 3000);
  std::map<std::string, uint64_t> paths;
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    const std::string repeat = "repeat it with: KEEPSTEP_SEED=" + std::to_string(seed) +
                               " KEEPSTEP_TRACE=1 keepstep_brain_test --gtest_filter='*ShardedSchedules*'";
    const TellOnAbort tell(repeat);
    try {
      ShardedSchedule schedule(seed, std::getenv("KEEPSTEP_TRACE") != nullptr);
      schedule.run();
      for (const auto& [path, times] : schedule.paths) {
        paths[path] += times;
      }
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << repeat;
    }
  }
  for (const char* path : {"death", "node lost", "divided anew", "from another division", "a step is done again",
                           "handed over", "node left", "postponed", "death after the release"}) {
    RecordProperty(path, std::to_string(paths[path]));
    EXPECT_TRUE(one || paths[path] > 0) << "this path was never taken: " << path;
  }
}

}  // namespace
}  // namespace keepstep::brain::simulation
