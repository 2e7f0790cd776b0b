// The membership brain against simulated_node.h: random deaths, exceptions, hangs and a network that delays, drops,
// repeats and reorders. Every schedule can be repeated from its seed:
//   KEEPSTEP_SEED=41 keepstep_brain_test --gtest_filter='*RandomSchedules*'
// KEEPSTEP_SCHEDULES=1000000 runs more of them; KEEPSTEP_TRACE=1 prints events and effects.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "brain/schedules/simulated_node.h"

namespace keepstep::brain::simulation {
namespace {

constexpr int64_t kMs = 1000;
constexpr int64_t kDeadline = 120'000 * kMs;

std::string type_name(size_t index, bool event) {
  static const char* const events[] = {"NodeJoined",   "NodeLost", "Parked", "Recoverable", "Died",   "Hung",
                                       "Exited",       "Faulted",  "Sealed", "Ready",       "Formed", "Progress",
                                       "Finished",     "Stop",     "Paused", "NodeLeaves",  "Scale",  "Policy",
                                       "UsefulWorlds", "Saved",    "Tick"};
  static const char* const effects[] = {"Spawn", "Seal",        "Decide",  "Prepare", "Activate", "Kill",
                                        "Pause", "ReleaseNode", "Release", "EndJob",  "Journal"};
  return event ? events[index] : effects[index];
}

class Schedule {
 public:
  Schedule(uint64_t seed, Paths& paths, bool trace) : loop_(seed), paths_(paths), trace_(trace) {
    config_.world_size = 1 + static_cast<uint32_t>(loop_.below(4));
    config_.nodes = 1 + static_cast<uint32_t>(loop_.below(2) * loop_.below(config_.world_size));
    config_.spare_nodes = config_.nodes > 1 ? static_cast<uint32_t>(loop_.below(3)) : 0;
    config_.spares = static_cast<uint32_t>(loop_.below(3));
    config_.repeat_after = std::chrono::milliseconds(20);
    config_.interrupt_timeout = std::chrono::milliseconds(200);
    config_.start_timeout = std::chrono::milliseconds(300);
    tight_budgets_ = loop_.below(8) == 0;
    if (!tight_budgets_) {
      config_.ladder = LadderConfig{100000, 100000, 100000, 100000, 100000};
      config_.start_failures = 100000;
      config_.ladder.replacements_per_step = loop_.below(4) == 0 ? static_cast<int>(loop_.below(3)) : 100000;
    }
    config_.ladder.faults_per_node = static_cast<int>(loop_.below(4));
    config_.ladder.node_window = std::chrono::milliseconds(loop_.below(2) == 0 ? 20 : 1000);
    chances_.death = pick({0.0, 0.003, 0.01, 0.03});
    chances_.exception = pick({0.0, 0.0, 0.02});
    chances_.hang = pick({0.0, 0.0, 0.02});
    chances_.drop = pick({0.0, 0.05, 0.2});
    chances_.repeat = pick({0.0, 0.1});
    chances_.reorder = loop_.below(2) == 0;
    chances_.node_loss = pick({0.0, 0.001, 0.005});
    chances_.corruption = pick({0.0, 0.0, 0.05, 0.2});
    chances_.flip = pick({0.0, 0.0, 0.02, 0.1});
    target_ = 1 + loop_.below(5);
    if (loop_.below(3) == 0) {
      make_elastic();
    }
    quiet_from_ = static_cast<int64_t>(loop_.below(120)) * kMs;
    brain_ = std::make_unique<Membership>(config_);
    nodes_ = std::make_unique<Nodes>(loop_, ledger_, paths_, chances_, target_,
                                     [this](NodeId node, Event event) { tell_brain(node, std::move(event)); });
    if (config_.nodes == 1 && config_.max_nodes <= 1) {
      nodes_->on_one_node();
    }
    nodes_->compare_states_every(loop_.below(4));
    if (chances_.drop == 0 && !chances_.reorder) {
      nodes_->deliver_in_order();
    }
    if (loop_.below(4) == 0) {
      nodes_->communicate_in_updates();
    }
    functions_ = loop_.below(4) == 0 ? 2 + static_cast<uint32_t>(loop_.below(2)) : 1;
    nodes_->run_functions(functions_);
  }

  void run() {
    for (NodeId node = 0; node < config_.nodes + config_.spare_nodes; ++node) {
      nodes_->come(node);
    }
    loop_.after(5 * kMs, [this] { tick(); });
    if (config_.elastic) {
      loop_.after(10 * kMs, [this] { change_something(); });
    }
    loop_.after(quiet_from_, [this] { chances_ = Chances{.reorder = chances_.reorder}; });
    while (!ended_) {
      must(loop_.now() < kDeadline, "training did not reach its target although deaths had stopped");
      must(loop_.run_one(), "nothing happens any more");
    }
    if (tight_budgets_ && ended_->exit_code != 0) {
      paths_.count("ended by the ladder");
      return;
    }
    if (ended_->message.find("nobody can tell which is right") != std::string::npos) {
      must(lied_, "a job ended for a corruption that never was");
      paths_.count("ended without a majority");
      return;
    }
    must(!nodes_->anybody_writes(), "the job ended although a rank still writes its last files");
    if (ended_->message.find("after the training function had returned") != std::string::npos) {
      must(ended_->exit_code == 1, "a job in which a process was killed ended with 0");
      // A rank may have called the next function without anyone knowing: no step of it is decided yet.
      const bool in_the_next = nodes_->functions_over() > entered_;
      must(ledger_.newest_decided() == (in_the_next ? 0 : target_), "a rank was let go before the last step");
      paths_.count("death after the release");
      return;
    }
    must(ended_->exit_code == 0, "the job ended with: " + ended_->message);
    must(ledger_.newest_decided() == target_, "the job ended before its last step");
    must(nodes_->functions_over() + 1 == functions_, "the job ended before its last function");
    paths_.count(functions_ > 1 ? "finished several functions" : "finished");
    if (config_.elastic) {
      paths_.count("finished, elastic");
    }
    if (config_.nodes > 1) {
      paths_.count(nodes_->lost() ? "finished after a node was lost" : "finished on several nodes");
    }
  }

 private:
  double pick(std::initializer_list<double> values) { return values.begin()[loop_.below(values.size())]; }

  Time some_time(uint64_t max_ms) { return std::chrono::milliseconds(loop_.below(max_ms + 1)); }

  // A changing world of 1 to 12 ranks: nodes come and go, and users make requests.
  void make_elastic() {
    config_.nodes = 1 + static_cast<uint32_t>(loop_.below(2));
    config_.spare_nodes = 0;
    config_.max_nodes = config_.nodes + static_cast<uint32_t>(loop_.below(3));
    config_.ranks_per_node = 1 + static_cast<uint32_t>(loop_.below(3));
    config_.ranks_per_replica = loop_.below(3) == 0 ? config_.ranks_per_node : 1;
    config_.start_grace = some_time(10);
    const uint32_t most = config_.max_nodes * config_.ranks_per_node / config_.ranks_per_replica;
    ElasticConfig elastic;
    elastic.min_replicas = 1;
    elastic.max_replicas = most;
    elastic.scaling_timeout = some_time(20);
    elastic.graceful_shutdown_timeout = some_time(100);
    elastic.faulty_scale_down_timeout = some_time(40);
    elastic.scale_up_snooze = some_time(20);
    elastic.min_between_changes = some_time(20);
    elastic.backoff_factor = 1.0 + static_cast<double>(loop_.below(2));
    elastic.max_backoff = elastic.min_between_changes + some_time(100);
    config_.elastic = elastic;
    target_ += 10;
  }

  void change_something() {
    if (loop_.now() >= quiet_from_) {
      return;
    }
    switch (loop_.below(4)) {
      case 0:
        nodes_->join_another();
        break;
      case 1:
        nodes_->tell_to_leave(config_.elastic->graceful_shutdown_timeout / std::chrono::microseconds(1) + 10 * kMs);
        break;
      case 2:
        feed(ScaleRequested{1 + static_cast<uint32_t>(loop_.below(config_.elastic->max_replicas))});
        break;
      default:
        feed(ScaleRequested{});
    }
    loop_.after(static_cast<int64_t>(loop_.below(20)) * kMs, [this] { change_something(); });
  }

  void tick() {
    feed(Tick{});
    loop_.after(5 * kMs, [this] { tick(); });
  }

  // ---- the network ----
  // Messages that nothing repeats are retransmitted until they arrive: late, but not lost.
  template <typename Deliver>
  void carry(bool repeated_if_lost, int64_t& last_arrival, Deliver deliver) {
    const int copies = loop_.happens(chances_.repeat) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      int64_t delay = 10 + static_cast<int64_t>(loop_.below(loop_.below(10) == 0 ? 5000 : 200));
      if (loop_.happens(chances_.drop)) {
        if (repeated_if_lost) {
          paths_.count("message lost");
          continue;
        }
        delay += 30 * kMs;
      }
      if (!chances_.reorder) {
        delay = std::max(delay, last_arrival - loop_.now());
      }
      last_arrival = std::max(last_arrival, loop_.now() + delay);
      loop_.after(delay, deliver);
    }
  }

  void tell_brain(NodeId node, Event event) {
    const bool answers = std::holds_alternative<Sealed>(event) || std::holds_alternative<Ready>(event) ||
                         std::holds_alternative<Formed>(event) || std::holds_alternative<Progress>(event);
    auto shared = std::make_shared<Event>(std::move(event));
    if (std::holds_alternative<NodeJoined>(*shared) || std::holds_alternative<NodeLost>(*shared)) {
      loop_.after(50, [this, shared] { feed(*shared); });  // both are the connection itself
      return;
    }
    carry(answers, last_event_[node], [this, shared] {
      if (const auto* parked = std::get_if<WorkerParked>(shared.get())) {
        feed(WorkerRecoverable{parked->worker});  // the only order that the shell preserves
      }
      feed(*shared);
    });
  }

  void feed(const Event& event) {
    if (trace_ && !std::holds_alternative<Tick>(event)) {
      std::cerr << loop_.now() << " > " << type_name(event.index(), true) << describe(event) << "\n";
    }
    if (const auto* joined = std::get_if<NodeJoined>(&event); joined != nullptr && parted_.contains(joined->node)) {
      return;  // an agent reports that only once
    }
    const Version floor_before = brain_->version();
    const Effects effects = brain_->step(event, std::chrono::microseconds(loop_.now()));
    bool restarted = false;
    for (const Effect& effect : effects) {
      if (trace_) {
        std::cerr << "        " << type_name(effect.index(), false) << describe(effect) << "\n";
      }
      restarted |= check(effect);
      if (std::holds_alternative<Journal>(effect) || std::holds_alternative<EndJob>(effect)) {
        continue;
      }
      for (const NodeId node : receivers(effect)) {
        auto shared = std::make_shared<Effect>(effect);
        carry(!std::holds_alternative<ReleaseNode>(effect), last_effect_[node],
              [this, node, shared] { nodes_->handle(node, *shared); });
      }
    }
    must(restarted || brain_->version() >= floor_before, "the floor went back");
  }

  std::vector<NodeId> receivers(const Effect& effect) const {
    if (const auto* spawn = std::get_if<Spawn>(&effect)) {
      return {spawn->node};
    }
    if (const auto* kill = std::get_if<Kill>(&effect)) {
      return {kill->node};
    }
    if (const auto* part = std::get_if<ReleaseNode>(&effect)) {
      return {part->node};
    }
    return nodes_->attending();
  }

  template <typename Message>
  std::string describe(const Message& message) {
    return std::visit(
        [](const auto& what) {
          std::string text;
          if constexpr (requires { what.worker; }) text += " worker=" + std::to_string(what.worker);
          if constexpr (requires { what.identity; }) text += " gen=" + std::to_string(what.identity.generation);
          if constexpr (requires { what.event; }) text += " " + what.event;
          if constexpr (requires { what.because; }) text += " " + what.because;
          return text;
        },
        message);
  }

  // ---- what the brain must never do ----
  bool check(const Effect& effect) {
    bool restarted = false;
    if (const auto* prepare = std::get_if<Prepare>(&effect)) {
      check_prepare(*prepare);
    } else if (const auto* kill = std::get_if<Kill>(&effect)) {
      killed_.insert(kill->worker);
    } else if (const auto* part = std::get_if<ReleaseNode>(&effect)) {
      parted_.insert(part->node);
    } else if (const auto* spawn = std::get_if<Spawn>(&effect)) {
      must(spawned_.insert(spawn->worker).second, "a worker's number was used twice");
    } else if (const auto* journal = std::get_if<Journal>(&effect)) {
      must(!journal->because.empty() || journal->event == "job_ended", journal->event + " without a reason");
      restarted = journal->event == "restart" || journal->event == "next_function";
      if (journal->event == "rung") {
        too_many_lies_ = journal->because.find("the digests differ: time ") != std::string::npos;
      }
      if (journal->event == "restart_with_state") {
        paths_.count(again_ ? "restart with state, the rest" : "restart with state");
        again_ = !again_;
      } else if (journal->event == "node_kept") {
        paths_.count("bad node kept for what it has");
      } else if (journal->event == "rung" && std::get<std::string>(journal->fields.at(0).second) == "replace_node") {
        paths_.count("bad node replaced");
        if (journal->because.starts_with("the gradients of step ")) {
          paths_.count("lying node replaced");
        }
      }
      if (journal->event == "restart") {
        check_restart();
      } else if (journal->event == "next_function") {
        must(++entered_ == nodes_->functions_over(), "a function begins that no rank entered");
      }
      if (journal->event == "corruption") {
        check_corruption(*journal);
      }
      if (journal->event == "spawn_requested" && brain_->identity().generation > 0) {
        paths_.count("respawn");
      }
    } else if (const auto* decide = std::get_if<Decide>(&effect)) {
      paths_.count(decide->verdict.forward ? "verdict forward" : "verdict redo");
      if (decide->verdict.because.starts_with("rank 0 had not recorded")) {
        paths_.count("not recorded, so not decided");
      }
      if (decide->verdict.because.ends_with("as decided")) {
        paths_.count("verdict by a decided survivor");
      }
    } else if (const auto* end = std::get_if<EndJob>(&effect)) {
      ended_ = *end;
    }
    return restarted;
  }

  // Each accused rank had different gradients in some attempt, or a different state; no other rank had.
  void check_corruption(const Journal& journal) {
    lied_ = true;
    const bool state = std::get<std::string>(journal.fields.at(1).second) == "state";
    for (const int64_t worker : std::get<std::vector<int64_t>>(journal.fields.at(3).second)) {
      must(nodes_->was_corrupted(static_cast<WorkerId>(worker)) || (state && nodes_->flips_spread()),
           "a worker that was right is called wrong");
      paths_.count(state                                                        ? "one with a flipped state replaced"
                   : journal.because.find("the redo gave") == std::string::npos ? "an odd one replaced"
                                                                                : "an odd one found by the redo");
    }
  }

  void check_prepare(const Prepare& prepare) {
    if (last_prepare_ && prepare.identity == last_prepare_->identity) {
      must(prepare.members == last_prepare_->members && prepare.table == last_prepare_->table &&
               prepare.version == last_prepare_->version,
           "one identity with two tables");
      return;
    }
    must(!last_prepare_ || prepare.identity > last_prepare_->identity, "a generation went back");
    must(prepare.version >= ledger_.newest_decided(), "a decided step was undone");
    must(prepare.table.world_size() == prepare.members.size(), "a rank table with holes");
    if (config_.elastic) {
      check_size(prepare);
    } else {
      must(prepare.members.size() == config_.world_size, "a generation with holes");
      must(prepare.table.entries().size() == config_.nodes, "a node has more than one run of ranks");
    }
    std::set<WorkerId> workers;
    for (Rank rank = 0; rank < prepare.members.size(); ++rank) {
      const Member& member = prepare.members[rank];
      must(member.rank == rank && workers.insert(member.worker).second, "a worker with two ranks");
      const auto [held, fresh] = rank_of_.emplace(member.worker, rank);
      must(fresh || held->second == rank || config_.elastic, "a worker changed its rank");
    }
    last_prepare_ = prepare;
  }

  void check_size(const Prepare& prepare) {
    const auto ranks = static_cast<uint32_t>(prepare.members.size());
    must(ranks % config_.ranks_per_replica == 0, "half a replica");
    must(ElasticPolicy(*config_.elastic).allows(ranks / config_.ranks_per_replica), "a size that the job may not have");
    must(prepare.members.front().node == 0, "rank 0 left its node");
    if (last_prepare_ && last_prepare_->members.size() != ranks) {
      must(prepare.resized, "another size that nobody is told of");
      paths_.count(last_prepare_->members.size() < ranks ? "grown" : "shrunk");
      bool again = false;
      for (const Member& member : prepare.members) {
        again |= member.newcomer && member.previous == kNoWorker && rank_of_.contains(member.worker);
      }
      if (again) {
        paths_.count("a rank for who had left");
      }
    }
  }

  void check_restart() {
    paths_.count("restart");
    if (too_many_lies_) {
      paths_.count("restart after too many lies");  // nobody's state is trusted any more
    }
    for (const auto& [id, worker] : nodes_->workers()) {
      // A worker that left when the world shrank has a copy, too, but does not know what was decided without it.
      const bool left = last_prepare_ && std::none_of(last_prepare_->members.begin(), last_prepare_->members.end(),
                                                      [id](const Member& member) { return member.worker == id; });
      must(too_many_lies_ || left || !worker.alive || killed_.contains(id) || nodes_->was_corrupted(id) ||
               ledger_.newest_decided() == 0 || !comes_to(worker, ledger_.newest_decided()),
           "a restart although a clean copy survives");
    }
    ledger_.restarted(last_prepare_ ? last_prepare_->identity : Identity{});
  }

  // It is clean at `version`, or restores what an update before its vote has overwritten.
  static bool comes_to(const Worker& worker, Version version) {
    const StepWord word = unpack_step_word(worker.word);
    return worker.state_word() == StateWord{StateKind::kClean, version} ||
           (worker.state_word() == StateWord{StateKind::kUpdating, version} && word.vote != Vote::kDecided);
  }

  Loop loop_;
  Ledger ledger_;
  Paths& paths_;
  bool trace_;
  MembershipConfig config_;
  bool tight_budgets_ = false;
  Chances chances_;
  Version target_ = 1;
  int64_t quiet_from_ = 0;
  std::unique_ptr<Membership> brain_;
  std::unique_ptr<Nodes> nodes_;
  std::map<NodeId, int64_t> last_event_;  // arrivals, by node
  std::map<NodeId, int64_t> last_effect_;
  std::optional<Prepare> last_prepare_;
  std::map<WorkerId, Rank> rank_of_;
  std::set<WorkerId> spawned_;
  std::set<WorkerId> killed_;
  std::set<NodeId> parted_;
  uint32_t functions_ = 1;
  uint32_t entered_ = 0;  // without the first one
  bool again_ = false;
  bool lied_ = false;           // the journal said so
  bool too_many_lies_ = false;  // the reason for the newest rung
  std::optional<EndJob> ended_;
};

TEST(RandomSchedules, never_lose_a_committed_step_never_mix_two_attempts_and_always_get_to_the_end) {
  const bool one = std::getenv("KEEPSTEP_SEED") != nullptr;
  const uint64_t first = number_from("KEEPSTEP_SEED", 1);
  const uint64_t schedules = one ? 1 : number_from("KEEPSTEP_SCHEDULES", 20000);
  const bool trace = std::getenv("KEEPSTEP_TRACE") != nullptr;
  Paths paths;
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    const std::string repeat = "repeat it with: KEEPSTEP_SEED=" + std::to_string(seed) +
                               " KEEPSTEP_TRACE=1 keepstep_brain_test --gtest_filter='*RandomSchedules*'";
    const TellOnAbort tell(repeat);
    try {
      Schedule(seed, paths, trace).run();
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << repeat;
    }
  }
  for (const auto& [path, times] : paths.taken) {
    RecordProperty(path, std::to_string(times));
    if (std::getenv("KEEPSTEP_PATHS") != nullptr) {
      std::cerr << times << "  " << path << "\n";
    }
  }
  if (one) {
    return;
  }
  for (const char* path : {"verdict forward",
                           "verdict redo",
                           "verdict by a decided survivor",
                           "forward by verdict",
                           "redo after a vote",
                           "restart",
                           "restart with state",
                           "restart with state, the rest",
                           "bad node replaced",
                           "bad node kept for what it has",
                           "respawn",
                           "hydrated",
                           "hydration interrupted",
                           "death while starting",
                           "death while waiting or unwinding",
                           "death while hydrating",
                           "death after a vote",
                           "death in an update",
                           "death before its verdict",
                           "death of a finished rank",
                           "memory of the dead given back",
                           "death of a rank that was released",
                           "death after the release",
                           "exception",
                           "exception in an update",
                           "interrupted in an update before the vote",
                           "death in an update before the vote",
                           "start that hangs",
                           "unwinding that hangs",
                           "killed on demand",
                           "node lost",
                           "node lost after a vote",
                           "node lost while hydrating",
                           "not recorded, so not decided",
                           "finished after a node was lost",
                           "sealed between update and next step",
                           "message lost",
                           "ended by the ladder",
                           "finished on several nodes",
                           "corruption",
                           "an odd one replaced",
                           "an odd one found by the redo",
                           "flip",
                           "flip taken over by a newcomer",
                           "one with a flipped state replaced",
                           "ended without a majority",
                           "restart after too many lies",
                           "lying node replaced",
                           "paused",
                           "grown",
                           "shrunk",
                           "a rank for who had left",
                           "node left",
                           "node that had no time to leave",
                           "finished, elastic",
                           "another function",
                           "finished several functions",
                           "finished"}) {
    EXPECT_GT(paths.taken[path], 0u) << "this path was never taken: " << path;
  }
}

}  // namespace
}  // namespace keepstep::brain::simulation
