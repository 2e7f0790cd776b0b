// A miniature version of a job's nodes for membership_random_test.cc: the shells around the agents' brains (node.h) and
// the ranks' brains (rank.h), and workers with step words, votes, updates and hydration that advance by one atomic
// action at a time. Test code only.
//
// Invariants are checked where they apply: see Ledger.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brain/membership/membership.h"
#include "brain/node/node.h"
#include "brain/rank/rank.h"
#include "brain/simulation.h"

namespace keepstep::brain::simulation {

enum class At {
  kStarting,
  kWaiting,  // for an assignment newer than the one entered
  kEntered,
  kReady,
  kHydrating,
  kHydrated,
  kForming,
  kComputing,
  kReducing,
  kCommunicating,  // in an update that comes before its vote
  kVoting,
  kVoted,
  kVerdict,
  kRestoring,  // restores what such an update has overwritten
  kUpdating,
  kClosing,
  kPaused,
  kFinished,
  kWriting,  // what it must write after the last step
  kHung,
};

struct Worker {
  WorkerId id = kNoWorker;
  NodeId node = 0;
  bool alive = true;
  bool scheduled = false;
  At at = At::kStarting;
  // The page, which outlives the process.
  uint64_t word = 0;
  uint64_t state = 0;
  std::array<std::optional<std::pair<Version, uint64_t>>, 2> capsules;
  // The process.
  Content content = 0;
  std::array<uint64_t, 3> flipped{};  // how each third of its state differs from what it should be: nobody knows
  std::vector<Content> pulled;
  Identity entered;
  Rank rank = 0;
  RankBrain brain;
  uint64_t corrupted = 0;            // how its gradients of this step differ from the others'
  std::optional<StepDigest> digest;  // in its page: of the step it voted on
  // The newest of each that the agent told it.
  std::optional<Prepare> assigned;  // with the members of all nodes
  std::optional<Activate> activated;
  Identity released;
  uint32_t functions = 0;  // how many are over for it
  bool carries = false;    // its state comes from a previous function: its own, or that of the rank that hydrated it
  Identity pausing;        // to be announced with the next vote
  StateWord answered;      // to `assigned`
  StateWord state_word() const { return unpack_state_word(state); }
  // The step that it does now, or next.
  Step step() const { return brain.version() + 1; }
};

// A generation's page on one node.
struct Page {
  bool sealing = false;
  std::optional<Version> verdict;
  std::map<Step, std::set<Rank>> closed;  // by ranks of this node
};

// An agent: its brain, and the memory it created.
struct Agent {
  explicit Agent(NodeId id) : brain(id) {}
  NodeBrain brain;
  std::map<Identity, Page> pages;
  std::set<WorkerId> freed;  // workers whose memory was freed
};

// What the members of a generation share across nodes.
struct Generation {
  Prepare prepare;
  std::optional<Activate> activate;
  std::optional<Version> verdict;
  std::set<Rank> formed;
  std::map<Step, std::set<Rank>> reduced;
  std::map<Step, std::set<Rank>> updated;  // before the vote
  std::map<Step, std::set<Rank>> voted;
  Step decided = 0;
  Step disagreed = 0;          // somebody reported it
  std::set<Step> pause_after;  // somebody announced it with its vote
};

class Nodes {
 public:
  Nodes(Loop& loop, Ledger& ledger, Paths& paths, const Chances& chances, Version target,
        std::function<void(NodeId, Event)> tell)
      : loop_(loop), ledger_(ledger), paths_(paths), chances_(chances), target_(target), tell_(std::move(tell)) {}

  // An agent is present from now on.
  void come(NodeId node) {
    agents_.emplace(node, Agent(node));
    tell_(node, NodeJoined{node, {ipv4(10, 0, 1, static_cast<uint8_t>(node)), 20000}});
  }
  // The nodes that receive an effect meant for all.
  std::vector<NodeId> attending() const {
    std::vector<NodeId> nodes;
    for (const auto& [node, agent] : agents_) {
      if (!lost_.contains(node)) {
        nodes.push_back(node);
      }
    }
    return nodes;
  }
  // An effect of the coordinator arrives at a node.
  void handle(NodeId node, const Effect& effect) {
    if (!agents_.contains(node) || lost_.contains(node)) {
      return;
    }
    if (const auto* part = std::get_if<ReleaseNode>(&effect)) {
      leave(*part);
      return;
    }
    note(effect);
    std::visit(
        [&](auto order) {
          if constexpr (std::is_same_v<decltype(order), Prepare>) {
            std::erase_if(order.members, [node](const Member& member) { return member.node != node; });
          }
          if constexpr (std::is_constructible_v<NodeEvent, decltype(order)>) {
            agent_step(node, order);
          }
        },
        effect);
    wake_all();
  }

  void on_one_node() { one_node_ = true; }
  // Somebody starts another agent.
  void join_another() { come_again(next_node_++); }
  // Runs `number` recoverable functions in sequence.
  void run_functions(uint32_t number) { functions_ = number; }
  uint32_t functions_over() const { return ledger_functions_; }
  // A node other than the first is told to leave, and ends when its time is up in any case.
  void tell_to_leave(int64_t grace) {
    std::vector<NodeId> others = attending();
    std::erase(others, first_node());
    if (others.empty()) {
      return;
    }
    const NodeId node = others[loop_.below(others.size())];
    tell_(node, NodeLeaves{node, "somebody else needs it"});
    loop_.after(grace, [this, node] {
      if (!lost_.contains(node)) {
        paths_.count("node that had no time to leave");
        lose_node(node);
      }
    });
  }
  void compare_states_every(Step steps) { compare_every_ = steps; }
  // Agents' messages arrive, and in order, as over a real connection. Otherwise an agent's brain is not told that a
  // generation formed: it would free memory that a coordinator that has not heard of it still asks for.
  void deliver_in_order() { in_order_ = true; }
  // Updates come before the vote, and their state is restored if the step does not count.
  void communicate_in_updates() { communicates_ = true; }
  const std::map<WorkerId, Worker>& workers() const { return workers_; }
  bool lost() const { return !lost_.empty(); }
  // Some rank was released and has not ended on its own yet.
  bool anybody_writes() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& each) { return each.second.alive && each.second.at == At::kWriting; });
  }
  bool was_corrupted(WorkerId worker) const { return liars_.contains(worker); }
  // A newcomer received a flipped state from a rank that had not been found out yet: then more ranks may be wrong than
  // right.
  bool flips_spread() const { return flips_spread_; }

 private:
  // ---- the agents: the shell around their brain ----
  void agent_step(NodeId node, const NodeEvent& event) {
    Agent& agent = agents_.at(node);
    for (const NodeEffect& effect : agent.brain.step(event, std::chrono::microseconds(loop_.now()))) {
      std::visit([&](const auto& wanted) { carry_out(node, agent, wanted); }, effect);
    }
  }

  // Records the generation for all nodes: a node is told only its own members.
  void note(const Effect& effect) {
    if (const auto* prepare = std::get_if<Prepare>(&effect)) {
      generations_[prepare->identity].prepare = *prepare;
      newest_ = std::max(newest_, prepare->identity);
    } else if (const auto* activate = std::get_if<Activate>(&effect)) {
      std::optional<Activate>& known = generations_[activate->identity].activate;
      must(!known || (known->sources == activate->sources && known->targets == activate->targets),
           "a generation was activated in two ways");
      known = *activate;
    }
  }

  void carry_out(NodeId node, Agent&, const Tell& effect) { tell_(node, effect.event); }

  void carry_out(NodeId node, Agent&, const StartWorker& effect) {
    Worker& worker = workers_[effect.spawn.worker];
    worker.id = effect.spawn.worker;
    worker.node = node;
    worker.content = mix(worker.id, 12345);  // every process starts with different random weights
    worker.functions = effect.spawn.functions;
    must(worker.functions < functions_, "a worker passes over a function that is not over");
    schedule(worker, 300 + static_cast<int64_t>(loop_.below(3000)));
  }

  void carry_out(NodeId node, Agent& agent, const SealWords& effect) {
    Sealed answer{node, effect.identity, {}};
    must(effect.unknown == !agent.pages.contains(effect.identity), "a brain that does not know which pages it has");
    if (!effect.unknown) {
      agent.pages.at(effect.identity).sealing = true;
    }
    for (const Holder& holder : effect.holders) {
      must(!agent.freed.contains(holder.worker), "a word is read in memory that was given back");
      Worker& worker = workers_.at(holder.worker);
      worker.word |= kSealedBit;
      const StepWord word = unpack_step_word(worker.word);
      answer.words.push_back(SealedWord{holder.rank, holder.worker, word, worker.state_word(),
                                        word.vote == Vote::kOpen ? std::nullopt : worker.digest});
    }
    tell_(node, answer);
  }

  void carry_out(NodeId, Agent&, const Interrupt&) {}  // its workers look at the page

  void carry_out(NodeId, Agent& agent, const Announce& effect) {
    const Identity identity = effect.decide.identity;
    const Version version = effect.decide.verdict.version;
    std::optional<Version>& everywhere = generations_[identity].verdict;
    must(!everywhere || *everywhere == version, "two verdicts over one generation");
    everywhere = version;
    agent.pages.at(identity).verdict = version;
  }

  void carry_out(NodeId, Agent& agent, const Begin& effect) { agent.pages[effect.prepare.identity]; }

  void carry_out(NodeId, Agent& agent, const Inherit& effect) {
    must(!agent.freed.contains(effect.from), "capsules are taken from memory that was given back");
    workers_.at(effect.to).capsules = workers_.at(effect.from).capsules;
  }

  void carry_out(NodeId node, Agent& agent, const Assign& effect) {
    const Prepare& prepare = generations_.at(agent.brain.identity()).prepare;
    Worker& worker = workers_.at(effect.member.worker);
    must(worker.node == node && effect.member.node == node, "a rank is said to be where its worker is not");
    must(prepare.table.locate(effect.member.rank).node == node, "the rank table has a rank on another node");
    must(effect.member.previous == kNoWorker || effect.member.newcomer, "a survivor takes over a capsule");
    if (worker.alive && worker.assigned && worker.assigned->identity == prepare.identity &&
        worker.entered == prepare.identity && worker.at >= At::kReady && worker.at != At::kHung) {
      tell_ready(worker);  // it answered already, so it repeats the answer
    }
    const bool repeated = worker.assigned && worker.assigned->identity == prepare.identity;
    worker.assigned = prepare;
    const auto previous = workers_.find(effect.member.previous);
    if (!repeated && previous != workers_.end() && previous->second.node != node) {
      worker.capsules = previous->second.capsules;  // that node's are gone, but the rank's keeper has copies
    }
  }

  void carry_out(NodeId, Agent&, const GoOn& effect) {
    for (const WorkerId id : effect.workers) {
      workers_.at(id).activated = effect.activate;
    }
    if (is_formed(generations_.at(effect.activate.identity)) && !effect.first) {
      say_formed(effect.activate.identity);  // a node that reported it before does so again
    }
  }

  void carry_out(NodeId, Agent&, const TellPause& effect) {
    for (const WorkerId id : effect.workers) {
      workers_.at(id).pausing = effect.pause.identity;
    }
  }
  void carry_out(NodeId, Agent&, const TellRelease& effect) {
    for (const WorkerId id : effect.workers) {
      workers_.at(id).released = effect.release.identity;
    }
  }

  void carry_out(NodeId, Agent&, const KillProcess& effect) {
    Worker& worker = workers_.at(effect.worker);
    if (worker.alive) {
      must(worker.at != At::kWriting, "a rank is killed while it writes its last files");
      paths_.count("killed on demand");
      die(worker);
    }
  }

  void carry_out(NodeId, Agent& agent, const FreeMemory& effect) {
    const Worker& worker = workers_.at(effect.worker);
    must(!worker.alive, "the memory of a living worker is given back");
    agent.freed.insert(effect.worker);
    if (worker.assigned) {
      paths_.count("memory of the dead given back");
    }
  }

  void carry_out(NodeId, Agent&, const ForgetCapsules&) {}  // there are no capsules of other nodes here
  void carry_out(NodeId, Agent&, const Forget&) {}          // no vaults here: see membership_sharded_random_test.cc
  void carry_out(NodeId, Agent&, const ForgetUnused&) {}
  void carry_out(NodeId, Agent&, const HasFormed&) {}
  void carry_out(NodeId, Agent&, const Close&) {}  // the schedule is over

  void leave(const ReleaseNode& effect) {
    for (const Member& member : generations_[newest_].prepare.members) {
      must(member.node != effect.node, "a node with ranks was let go");
    }
    paths_.count("node left");
    silence(effect.node);
    loop_.after(static_cast<int64_t>(loop_.below(20000)), [this] { come_again(next_node_++); });
  }

  Page& page_of(const Worker& worker) { return agents_.at(worker.node).pages.at(worker.entered); }

  static Rank rank_of(const Worker& worker) {
    for (const Member& member : worker.assigned->members) {
      if (member.worker == worker.id) {
        return member.rank;
      }
    }
    throw std::runtime_error("a worker got a table without itself");
  }

  static int64_t pid(const Worker& worker) { return 100 + int64_t{worker.id}; }
  static bool is_formed(const Generation& generation) {
    return generation.formed.size() == generation.prepare.members.size();
  }
  bool interrupted(const Worker& worker) {
    return page_of(worker).sealing || worker.assigned->identity > worker.entered;
  }
  Generation& generation_of(const Worker& worker) { return generations_.at(worker.entered); }
  bool all(const std::set<Rank>& ranks, const Worker& worker) {
    return ranks.size() == generation_of(worker).prepare.members.size();
  }

  // ---- a worker: one atomic action each ----
  void schedule(Worker& worker, int64_t delay) {
    if (worker.scheduled || !worker.alive) {
      return;
    }
    worker.scheduled = true;
    loop_.after(delay, [this, &worker] {
      worker.scheduled = false;
      if (worker.alive) {
        advance(worker);
      }
    });
  }
  void wake_all() {
    for (auto& [id, worker] : workers_) {
      if (worker.at != At::kStarting) {
        schedule(worker, pause(60));
      }
    }
  }

  // From time to time the scheduler forgets a worker for a while.
  int64_t pause(uint64_t usual) { return 1 + static_cast<int64_t>(loop_.below(loop_.below(16) == 0 ? 4000 : usual)); }

  void advance(Worker& worker) {
    const At before = worker.at;
    if (worker.node != first_node() && loop_.happens(chances_.node_loss)) {
      lose_node(worker.node);
      return;
    }
    if (loop_.happens(chances_.death)) {
      count_death(worker);
      die(worker);
      return;
    }
    act(worker);
    if (worker.alive && worker.at != before) {
      schedule(worker, pause(worker.at == At::kReducing ? 800 : 120));
    }
  }

  void act(Worker& worker) {
    switch (worker.at) {
      case At::kStarting:
        return start(worker);
      case At::kWaiting:
        return enter(worker);
      case At::kEntered:
        return answer(worker);
      case At::kReady:
        return await_activation(worker);
      case At::kHydrating:
        return hydrate(worker);
      case At::kHydrated:
        return join(worker);
      case At::kForming:
        return await_formed(worker);
      case At::kComputing:
        return compute(worker);
      case At::kReducing:
        return await_reduced(worker);
      case At::kCommunicating:
        return communicate(worker);
      case At::kVoting:
        return vote(worker);
      case At::kVoted:
        return await_votes(worker);
      case At::kVerdict:
        return await_verdict(worker);
      case At::kRestoring:
        return restore(worker);
      case At::kUpdating:
        return update(worker);
      case At::kClosing:
        return close(worker);
      case At::kPaused:
        return await_change(worker);
      case At::kFinished:
        return await_release(worker);
      case At::kWriting:
        return write(worker);
      case At::kHung:
        return;
    }
  }

  void start(Worker& worker) {
    if (loop_.happens(chances_.hang)) {
      worker.at = At::kHung;
      paths_.count("start that hangs");
      return;
    }
    park(worker);
  }

  void park(Worker& worker) {
    worker.at = At::kWaiting;
    tell_(worker.node, WorkerParked{worker.id, pid(worker), worker.functions});
  }

  void enter(Worker& worker) {
    if (!worker.assigned || worker.assigned->identity <= worker.entered) {
      return;
    }
    if (loop_.happens(chances_.hang)) {
      worker.at = At::kHung;
      paths_.count("unwinding that hangs");
      return;
    }
    const Prepare& prepare = *worker.assigned;
    must(worker.functions == prepare.functions, "a worker gets a rank in another function than it entered");
    worker.entered = prepare.identity;
    worker.rank = rank_of(worker);
    worker.brain.left();
    const auto world = static_cast<uint32_t>(generations_.at(worker.entered).prepare.members.size());
    (void)worker.brain.assigned({worker.rank, world, prepare.sharding.number}, prepare.version);
    if (loop_.below(4) == 0) {
      worker.brain.left();  // repeated, and late
    }
    worker.word = pack(StepWord{worker.entered, worker.step(), Vote::kOpen, false});
    worker.at = At::kEntered;
  }

  void answer(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
      return;
    }
    worker.answered = worker.state_word();
    worker.at = At::kReady;
    tell_ready(worker);
  }

  void tell_ready(const Worker& worker) {
    agent_step(worker.node, MemberReady{worker.entered, {worker.id, worker.answered}});
    loop_.after(loop_.below(100), [this, node = worker.node] { agent_step(node, Tick{}); });
  }

  void await_activation(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    } else if (worker.activated && worker.activated->identity == worker.entered) {
      const std::vector<Rank>& sources = worker.activated->sources;
      const Joining joining =
          worker.brain.activated(sources, worker.activated->targets, worker.state_word(), false, false);
      const bool source = joining.fill == Fill::kNothing;
      must(source == (std::find(sources.begin(), sources.end(), worker.rank) != sources.end()),
           "a rank neither has the state nor gets it from peers");
      const StateWord clean{StateKind::kClean, worker.activated->version};
      if (source && worker.activated->compare) {
        worker.state = pack(clean);
      }
      must(!source || worker.state_word() == clean, "a source is not clean at the generation's version");
      worker.pulled.clear();
      worker.flipped = source ? worker.flipped : std::array<uint64_t, 3>{};
      if (!source) {
        worker.state = pack(StateWord{StateKind::kHydrating, worker.activated->version});
      }
      worker.at = source ? At::kHydrated : At::kHydrating;
    }
  }

  // Reads a third of the state from any living source, and checks the source's word again after the last byte.
  void hydrate(Worker& worker) {
    const Generation& generation = generation_of(worker);
    if (interrupted(worker)) {
      worker.state = pack(StateWord{});
      worker.at = At::kWaiting;
      paths_.count("hydration interrupted");
      return;
    }
    const std::vector<Rank>& sources = worker.activated->sources;
    const Rank rank = sources[loop_.below(sources.size())];
    const Worker& source = workers_.at(generation.prepare.members[rank].worker);
    if (source.alive && source.state_word() == StateWord{StateKind::kClean, worker.activated->version}) {
      const size_t third = worker.pulled.size();
      worker.pulled.push_back(source.content);
      if (third < worker.flipped.size() && source.flipped[third] != 0) {
        worker.flipped[third] = source.flipped[third];
        liars_.insert(worker.id);
        flips_spread_ = true;
        paths_.count("flip taken over by a newcomer");
      }
    }
    if (worker.pulled.size() < 3) {
      schedule(worker, 20 + static_cast<int64_t>(loop_.below(100)));
      return;
    }
    must(worker.pulled[0] == worker.pulled[1] && worker.pulled[1] == worker.pulled[2], "sources differ");
    worker.content = worker.pulled[0];
    worker.carries = source.carries;
    worker.state = pack(StateWord{StateKind::kClean, worker.activated->version});
    worker.at = At::kHydrated;
    paths_.count("hydrated");
  }

  void join(Worker& worker) {
    Generation& generation = generation_of(worker);
    if (generation.prepare.resized) {  // in another world ranks get new ones
      worker.capsules[worker.brain.version() % 2] = {worker.brain.version(), capsule_of(worker)};
    }
    generation.formed.insert(worker.rank);
    if (is_formed(generation)) {
      check_equal(generation);
      loop_.after(pause(300), [this, identity = worker.entered] { say_formed(identity); });
    }
    worker.at = At::kForming;
    wake_all();
  }

  // A message from rank 0's node, which may still be in its socket when the words are sealed.
  void say_formed(Identity identity) {
    const NodeId node = generations_.at(identity).prepare.members.front().node;
    if (lost_.contains(node)) {
      return;
    }
    if (in_order_) {
      agent_step(node, Formed{identity});
    } else {
      tell_(node, Formed{identity});
    }
  }

  void check_equal(const Generation& generation) {
    const Version version = generation.prepare.version;
    const auto carries = [this](const Member& member) { return workers_.at(member.worker).carries; };
    const std::vector<Member>& members = generation.prepare.members;
    must(std::ranges::any_of(members, carries) == std::ranges::all_of(members, carries),
         "some ranks begin with what a function before came to, and others do not");
    for (const Member& member : generation.prepare.members) {
      const Worker& worker = workers_.at(member.worker);
      if (!worker.alive) {
        continue;
      }
      must(worker.content == workers_.at(generation.prepare.members[0].worker).content ||
               !workers_.at(generation.prepare.members[0].worker).alive,
           "a generation formed with different states");
      must(version == 0 || ledger_.content(version) == nullptr || worker.content == *ledger_.content(version),
           "a generation formed with a state that was never committed");
    }
  }

  void await_formed(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    } else if (is_formed(generation_of(worker))) {
      const Version version = worker.brain.version();
      const auto& capsule = worker.capsules[version % 2];
      must(version == 0 || (capsule && *capsule == std::make_pair(version, capsule_of(worker))),
           "a rank starts a step without its capsule");
      worker.brain.joined();
      go_on(worker);
    }
  }

  void go_on(Worker& worker) {
    switch (worker.brain.next(target_, interrupted(worker))) {
      case NextStep::kStep:
        worker.at = At::kComputing;
        break;
      case NextStep::kLeave:
        worker.at = At::kWaiting;
        break;
      case NextStep::kPause:
        paths_.count("paused");
        worker.at = At::kPaused;
        tell_(worker.node, WorkerPaused{worker.id, worker.entered});
        break;
      case NextStep::kEnd:
        worker.at = At::kFinished;
        tell_(worker.node, WorkerFinished{worker.id, worker.entered});
        break;
      case NextStep::kStop:
        must(false, "a rank stops without a notice");
    }
  }

  void compute(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
      return;
    }
    if (loop_.happens(chances_.exception)) {
      paths_.count("exception");
      raise(worker);
      return;
    }
    worker.corrupted = 0;
    if (generation_of(worker).prepare.members.size() > 1 && loop_.happens(chances_.corruption)) {
      worker.corrupted = mix(worker.id, loop_.below(1000)) | 1;
      corrupted_.insert({worker.entered, worker.step()});
      liars_.insert(worker.id);
      paths_.count("corruption");
    }
    if (compare_every_ > 0 && loop_.happens(chances_.flip)) {
      worker.flipped[loop_.below(3)] ^= mix(worker.id, loop_.below(1000)) | 1;
      liars_.insert(worker.id);
      paths_.count("flip");
    }
    generation_of(worker).reduced[worker.step()].insert(worker.rank);
    worker.at = At::kReducing;
    wake_all();
  }

  void await_reduced(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    } else if (all(generation_of(worker).reduced[worker.step()], worker)) {
      save_capsule(worker);
      worker.at = At::kVoting;
      if (communicates_) {
        worker.state = pack(StateWord{StateKind::kUpdating, worker.brain.version()});
        worker.at = At::kCommunicating;
      }
    }
  }

  void communicate(Worker& worker) {
    if (interrupted(worker)) {
      paths_.count("interrupted in an update before the vote");
      worker.at = At::kRestoring;
      return;
    }
    std::set<Rank>& updated = generation_of(worker).updated[worker.step()];
    if (updated.insert(worker.rank).second) {
      wake_all();
    }
    if (all(updated, worker)) {
      worker.at = At::kVoting;
    }
  }

  void restore(Worker& worker) {
    worker.state = pack(StateWord{StateKind::kClean, worker.brain.version()});
    worker.at = At::kWaiting;
  }

  // Where a rank goes when it leaves a step that does not count.
  At left() const { return communicates_ ? At::kRestoring : At::kWaiting; }

  // Whatever forward changed in this rank.
  static void save_capsule(Worker& worker) {
    worker.capsules[worker.step() % 2] = {worker.step(), mix(worker.rank, next_content(worker))};
  }

  // Unlike next_content, the same in a redo: the same state gives the same gradients.
  StepDigest digest_of(const Worker& worker) const {
    return {mix(worker.content, worker.step()) ^ worker.corrupted,
            compares_states(worker.step())
                ? mix(worker.content, mix(worker.flipped[0], mix(worker.flipped[1], worker.flipped[2]))) | 1
                : 0};
  }
  bool compares_states(Step step) const { return compare_every_ > 0 && step % compare_every_ == 0; }

  static Content next_content(const Worker& worker) {
    return mix(mix(worker.content, worker.step()), worker.entered.generation) ^ worker.corrupted;
  }
  static uint64_t capsule_of(const Worker& worker) { return mix(worker.rank, worker.content); }

  // What the last voter finds when it compares what all ranks wrote into their pages before they voted.
  bool agreed(const Worker& worker) {
    const std::vector<Member>& members = generation_of(worker).prepare.members;
    return std::all_of(members.begin(), members.end(),
                       [&](const Member& member) { return workers_.at(member.worker).digest == worker.digest; });
  }

  static bool swap_word(Worker& worker, Vote from, Step step, Step next_step, Vote to) {
    if (worker.word != pack(StepWord{worker.entered, step, from, false})) {
      return false;
    }
    worker.word = pack(StepWord{worker.entered, next_step, to, false});
    return true;
  }

  void vote(Worker& worker) {
    worker.digest = digest_of(worker);
    worker.brain.voting();
    if (!swap_word(worker, Vote::kOpen, worker.step(), worker.step(), Vote::kYes)) {
      undecided(worker);
      return;
    }
    generation_of(worker).voted[worker.step()].insert(worker.rank);
    if (worker.pausing == worker.entered) {
      generation_of(worker).pause_after.insert(worker.step());
    }
    worker.at = At::kVoted;
    wake_all();
  }

  // Sealed before this rank knew how all voted.
  void undecided(Worker& worker) {
    must(worker.brain.voted(false, 0) == AfterVote::kAwaitVerdict, "a rank does not wait for the verdict");
    worker.at = At::kVerdict;
  }

  void await_votes(Worker& worker) {
    Generation& generation = generation_of(worker);
    // With several nodes, rank 0 records the decision before the others learn of it.
    const bool may_know = one_node_ || worker.rank == 0 || generation.decided >= worker.step();
    if (all(generation.voted[worker.step()], worker) && generation.decided < worker.step() && !agreed(worker)) {
      if (interrupted(worker)) {
        undecided(worker);
      } else if (generation.disagreed != worker.step()) {  // one of them reports it
        generation.disagreed = worker.step();
        tell_(worker.node,
              WorkerFaulted{worker.id, worker.entered, worker.step(), "the digests differ", "", false, false, true});
      }
    } else if (all(generation.voted[worker.step()], worker) && may_know) {
      if (!swap_word(worker, Vote::kYes, worker.step(), worker.step(), Vote::kDecided)) {
        undecided(worker);
      } else {
        if (generation.decided < worker.step()) {  // a late decider may be behind others that continue, and flip
          check_same_states(worker);
        }
        generation.decided = worker.step();
        wake_all();
        must(!corrupted_.contains({worker.entered, worker.step()}), "a corrupted step was decided");
        ledger_.decided(worker.entered, worker.step());
        const uint32_t flags = generation.pause_after.contains(worker.step()) ? kFlagPause : 0U;
        must(worker.brain.voted(true, flags) == AfterVote::kUpdate, "a rank does not update what all voted for");
        worker.state = pack(StateWord{StateKind::kUpdating, worker.brain.version()});
        worker.at = At::kUpdating;
      }
    } else if (interrupted(worker)) {
      undecided(worker);
    }
  }

  void check_same_states(const Worker& worker) {
    for (const Member& member : generation_of(worker).prepare.members) {
      must(!compares_states(worker.step()) || workers_.at(member.worker).flipped == worker.flipped,
           "a step was decided on top of states that differ");
    }
  }

  void await_verdict(Worker& worker) {
    const std::optional<Version>& verdict = page_of(worker).verdict;
    if (!verdict) {
      return;
    }
    if (!worker.brain.counts(*verdict)) {
      if (unpack_step_word(worker.word).vote != Vote::kOpen) {
        paths_.count("redo after a vote");
      }
      worker.at = left();
      return;
    }
    must(*verdict == worker.step(), "a verdict beyond what a survivor voted on");
    paths_.count("forward by verdict");
    worker.at = At::kUpdating;
    worker.state = pack(StateWord{StateKind::kUpdating, worker.brain.version()});
  }

  void update(Worker& worker) {
    if (!communicates_ && loop_.happens(chances_.exception)) {
      paths_.count("exception in an update");
      worker.state = pack(StateWord{});
      raise(worker);
      return;
    }
    must(!corrupted_.contains({worker.entered, worker.step()}), "a corrupted update was applied");
    worker.content = next_content(worker);
    ledger_.applied(worker.entered, worker.step(), worker.content);
    worker.state = pack(StateWord{StateKind::kClean, worker.step()});
    worker.brain.updated();
    worker.at = At::kClosing;
  }

  void close(Worker& worker) {
    if (unpack_step_word(worker.word).vote != Vote::kDecided) {  // it counts because of a verdict
      worker.at = At::kWaiting;
    } else if (!swap_word(worker, Vote::kDecided, worker.brain.version(), worker.step(), Vote::kOpen)) {
      paths_.count("sealed between update and next step");
      worker.at = At::kWaiting;
    } else {
      tell_progress(worker);
      go_on(worker);
    }
  }

  // Called once all ranks of the node have committed the step.
  void tell_progress(const Worker& worker) {
    const Step committed = worker.brain.version();
    std::set<Rank>& closed = page_of(worker).closed[committed];
    closed.insert(worker.rank);
    const Prepare* here = agents_.at(worker.node).brain.prepared();
    if (here->identity != worker.entered || closed.size() < here->members.size()) {
      return;
    }
    if (in_order_) {
      agent_step(worker.node, FormedByCommit{worker.entered});
    }
    tell_(worker.node, Progress{worker.entered, committed, worker.digest});
  }

  void await_change(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    }
  }

  void await_release(Worker& worker) {
    if (worker.released == worker.entered) {
      must(worker.state_word() == StateWord{StateKind::kClean, target_}, "a rank was let go before the last step");
      worker.brain.finished();
      worker.at = At::kWriting;
    } else if (interrupted(worker)) {
      worker.at = At::kWaiting;
    }
  }

  // Called several times, with a chance to die each time.
  void write(Worker& worker) {
    if (loop_.below(4) > 0) {
      schedule(worker, pause(400));
      return;
    }
    if (worker.functions + 1 < functions_) {
      enter_next(worker);
      return;
    }
    worker.alive = false;
    agent_step(worker.node, WorkerExited{worker.id});
  }

  void enter_next(Worker& worker) {
    ++worker.functions;
    if (worker.functions > ledger_functions_) {  // the first rank to do so: all steps of the previous one are committed
      ledger_functions_ = worker.functions;
      ledger_.restarted(worker.entered);
      paths_.count("another function");
    }
    worker.carries = true;
    worker.brain.start_again();
    worker.state = pack(StateWord{StateKind::kClean, 0});
    worker.capsules = {};
    park(worker);
  }

  void raise(Worker& worker) {
    worker.at = At::kWaiting;
    tell_(worker.node, WorkerFaulted{worker.id, worker.entered, worker.step(), "ValueError", "Traceback"});
  }

  void count_death(const Worker& worker) {
    static const std::map<At, std::string> named = {{At::kStarting, "death while starting"},
                                                    {At::kWaiting, "death while waiting or unwinding"},
                                                    {At::kHydrating, "death while hydrating"},
                                                    {At::kVoted, "death after a vote"},
                                                    {At::kUpdating, "death in an update"},
                                                    {At::kVerdict, "death before its verdict"},
                                                    {At::kCommunicating, "death in an update before the vote"},
                                                    {At::kFinished, "death of a finished rank"},
                                                    {At::kWriting, "death of a rank that was released"}};
    const auto found = named.find(worker.at);
    paths_.count(found == named.end() ? "death elsewhere" : found->second);
  }

  static NodeId first_node() { return 0; }

  void silence(NodeId node) {
    lost_.insert(node);
    for (auto& [id, worker] : workers_) {
      if (worker.node == node) {
        if (worker.at == At::kHydrating) {
          paths_.count("node lost while hydrating");
        }
        if (worker.alive && worker.at == At::kVoted) {
          paths_.count("node lost after a vote");
        }
        worker.alive = false;
      }
    }
  }

  // Another agent takes its place after a while, under its own id.
  void lose_node(NodeId node) {
    paths_.count("node lost");
    silence(node);
    loop_.after(200 + static_cast<int64_t>(loop_.below(3000)),
                [this, node] { tell_(node, NodeLost{node, "it burnt"}); });
    loop_.after(static_cast<int64_t>(loop_.below(20000)), [this] { come_again(next_node_++); });
  }

  // Until the job knows that it needs another node it refuses one, so the agent asks again.
  void come_again(NodeId node) {
    if (!lost_.contains(node)) {
      come(node);
      loop_.after(20000, [this, node] { come_again(node); });
    }
  }

  void die(Worker& worker) {
    worker.alive = false;
    const bool early = loop_.happens(0.5);
    if (early) {
      loop_.after(200, [this, &worker] { notice(worker, -1); });
    }
    loop_.after(400 + static_cast<int64_t>(loop_.below(20000)), [this, &worker] { notice(worker, 9); });
  }
  void notice(Worker& worker, int signal) {
    if (lost_.contains(worker.node)) {
      return;
    }
    agent_step(worker.node, WorkerDied{worker.id, pid(worker), signal, 0, signal == -1 ? "robust mutex" : "pidfd"});
  }

  Loop& loop_;
  Ledger& ledger_;
  Paths& paths_;
  const Chances& chances_;
  Version target_;
  std::function<void(NodeId, Event)> tell_;
  std::map<NodeId, Agent> agents_;
  std::set<NodeId> lost_;
  bool one_node_ = false;
  bool communicates_ = false;
  bool in_order_ = false;
  uint32_t functions_ = 1;
  uint32_t ledger_functions_ = 0;
  NodeId next_node_ = 100;
  std::map<WorkerId, Worker> workers_;
  std::set<WorkerId> liars_;
  Step compare_every_ = 0;  // 0: states are neither compared nor flipped
  bool flips_spread_ = false;
  std::set<std::pair<Identity, Step>> corrupted_;  // attempts in which a rank had different gradients
  std::map<Identity, Generation> generations_;
  Identity newest_;  // of them
};

}  // namespace keepstep::brain::simulation
