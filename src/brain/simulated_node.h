// The nodes of a job in miniature for membership_random_test.cc: agents and their workers, with the step words, seals,
// votes, updates and hydration of design section 6, advanced one atomic action at a time. Test code only.
//
// What must hold is checked where it happens: see Ledger.
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

#include "brain/membership.h"
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
  kRestoring,  // puts back what such an update has overwritten
  kUpdating,
  kClosing,
  kPaused,
  kFinished,
  kWriting,  // what it has to write after the last step
  kHung,
};

struct Worker {
  WorkerId id = kNoWorker;
  NodeId node = 0;
  bool alive = true;
  bool noticed_dead = false;
  bool exited = false;
  bool scheduled = false;
  At at = At::kStarting;
  // The page: outlives the process.
  uint64_t word = 0;
  uint64_t state = 0;
  std::array<std::optional<std::pair<Version, uint64_t>>, 2> capsules;
  // The process.
  Content content = 0;
  std::array<uint64_t, 3> flipped{};  // what each third of its state differs by from what it should be: nobody knows
  std::vector<Content> pulled;
  Identity entered;
  Rank rank = 0;
  Step step = 0;
  bool forward = false;              // the update follows a verdict
  uint64_t corrupted = 0;            // what its gradients of `step` differ by from those of the others
  std::optional<StepDigest> digest;  // in its page: of the step that it voted on
  // What the agent gave it.
  std::optional<Prepare> assigned;
  StateWord state_word() const { return unpack_state_word(state); }
};

// What the members of a generation share.
struct Generation {
  Prepare prepare;
  std::optional<Activate> activate;
  std::optional<Version> verdict;
  std::set<Rank> formed;
  std::map<Step, std::set<Rank>> reduced;
  std::map<Step, std::set<Rank>> updated;  // before the vote
  std::map<Step, std::set<Rank>> voted;
  Step decided = 0;
  Step disagreed = 0;  // somebody told of it
  bool released = false;
  bool pausing = false;        // its ranks were told to say so with their next vote
  std::set<Step> pause_after;  // somebody did
};

class Nodes {
 public:
  Nodes(Loop& loop, Ledger& ledger, Paths& paths, const Chances& chances, Version target,
        std::function<void(Event)> tell)
      : loop_(loop), ledger_(ledger), paths_(paths), chances_(chances), target_(target), tell_(std::move(tell)) {}

  void handle(const Effect& effect) {
    std::visit([this](const auto& wanted) { on(wanted); }, effect);
    wake_all();
  }

  void on_one_node() { one_node_ = true; }
  // Somebody starts another agent.
  void join_another() { attend(next_node_++); }
  // A node that is not the first is told to leave, and ends at the end of its time in any case.
  void tell_to_leave(int64_t grace) {
    std::vector<NodeId> others;
    for (const NodeId node : nodes_) {
      if (node != first_node() && !lost_.contains(node)) {
        others.push_back(node);
      }
    }
    if (others.empty()) {
      return;
    }
    const NodeId node = others[loop_.below(others.size())];
    tell_(NodeLeaves{node, "somebody else needs it"});
    loop_.after(grace, [this, node] {
      if (!lost_.contains(node)) {
        paths_.count("node that had no time to leave");
        lose_node(node);
      }
    });
  }
  void compare_states_every(Step steps) { compare_every_ = steps; }
  // What an agent says arrives, and in its order: then it gives the memory of the dead back.
  void deliver_in_order() { in_order_ = true; }
  // Updates come before the vote, of a state that is put back where the step does not count.
  void communicate_in_updates() { communicates_ = true; }
  const std::map<WorkerId, Worker>& workers() const { return workers_; }
  bool lost() const { return !lost_.empty(); }
  // Some rank was released, and did not end by itself yet.
  bool anybody_writes() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& each) { return each.second.alive && each.second.at == At::kWriting; });
  }
  bool was_corrupted(WorkerId worker) const { return liars_.contains(worker); }
  // A newcomer took a flipped state from somebody who was not found out yet: then more may be wrong than right.
  bool flips_spread() const { return flips_spread_; }

 private:
  // ---- the agents ----
  void on(const Spawn& effect) {
    if (workers_.contains(effect.worker) || killed_unborn_.contains(effect.worker)) {
      return;
    }
    Worker& worker = workers_[effect.worker];
    worker.id = effect.worker;
    worker.node = effect.node;
    nodes_.insert(effect.node);
    worker.alive = !lost_.contains(effect.node);
    worker.content = mix(effect.worker, 12345);  // every process starts with other random weights
    schedule(worker, 300 + static_cast<int64_t>(loop_.below(3000)));
  }

  void on(const Seal& effect) {
    if (effect.identity < prepared_) {
      return;
    }
    for (const NodeId node : nodes_) {
      if (lost_.contains(node)) {
        continue;
      }
      Sealed answer{node, effect.identity, {}};
      for (auto& [id, worker] : workers_) {
        if (worker.node == node && worker.assigned) {
          worker.word |= kSealedBit;
          const StepWord word = unpack_step_word(worker.word);
          answer.words.push_back(SealedWord{rank_of(worker), id, word, worker.state_word(),
                                            word.vote == Vote::kOpen ? std::nullopt : worker.digest});
        }
      }
      tell_(answer);
    }
    sealed_ = std::max(sealed_, effect.identity);
  }

  void on(const Decide& effect) { set_verdict(effect.identity, effect.verdict.version); }

  void on(const Prepare& effect) {
    if (effect.identity <= sealed_ || effect.identity < prepared_) {
      return;
    }
    if (effect.identity == prepared_) {
      for (const Member& member : effect.members) {  // who answered already says it again
        Worker& worker = workers_.at(member.worker);
        if (worker.alive && worker.entered == prepared_ && worker.at >= At::kReady && worker.at != At::kHung) {
          tell_(Ready{worker.id, prepared_, answered_[worker.id]});
        }
      }
      return;
    }
    if (prepared_.generation > 0) {
      set_verdict(prepared_, effect.version);  // where Decide got lost: the version says the same
    }
    prepared_ = effect.identity;
    generations_[prepared_].prepare = effect;
    answered_.clear();
    for (const Member& member : effect.members) {
      Worker& worker = workers_.at(member.worker);
      must(worker.node == member.node, "a rank is said to be where its worker is not");
      must(effect.table.place(member.rank).node == member.node, "the rank table has a rank on another node");
      if (member.previous != kNoWorker) {
        must(member.newcomer, "a survivor takes over a capsule");
        worker.capsules = workers_.at(member.previous).capsules;
      }
      worker.assigned = effect;
    }
  }

  void on(const Activate& effect) {
    if (effect.identity <= sealed_ || effect.identity != prepared_) {
      return;
    }
    Generation& generation = generations_[prepared_];
    if (generation.activate) {
      must(generation.activate->sources == effect.sources && generation.activate->targets == effect.targets,
           "a generation was activated in two ways");
      if (is_formed(generation)) {
        tell_(Formed{prepared_});
      }
      return;
    }
    generation.activate = effect;
  }

  void on(const Kill& effect) {
    const auto found = workers_.find(effect.worker);
    if (found == workers_.end()) {
      killed_unborn_.insert(effect.worker);
      tell_(WorkerDied{effect.worker, 0, 9, 0, "agent"});
    } else if (lost_.contains(found->second.node)) {
      return;
    } else if (found->second.alive) {
      must(found->second.at != At::kWriting, "a rank is killed while it writes its last files");
      paths_.count("killed on demand");
      die(found->second);
    } else if (found->second.exited) {
      tell_(WorkerExited{effect.worker});
    } else {
      tell_(WorkerDied{effect.worker, pid(found->second), 9, 0, "agent"});
    }
  }

  void on(const Release& effect) {
    if (effect.identity == prepared_ && effect.identity > sealed_) {
      generations_[prepared_].released = true;
    }
  }
  void on(const Pause& effect) {
    if (effect.identity == prepared_ && effect.identity > sealed_) {
      generations_[prepared_].pausing = true;
    }
  }
  void on(const Part& effect) {
    for (const Member& member : generations_[prepared_].prepare.members) {
      must(member.node != effect.node, "a node with ranks was let go");
    }
    paths_.count("node left");
    silence(effect.node);
    loop_.after(static_cast<int64_t>(loop_.below(20000)), [this] { attend(next_node_++); });
  }
  void on(const EndJob&) {}
  void on(const Journal&) {}

  void set_verdict(Identity identity, Version version) {
    const auto found = generations_.find(identity);
    if (found == generations_.end()) {
      return;
    }
    std::optional<Version>& verdict = found->second.verdict;
    // Prepare after a restart carries version 0: all that waited for the verdict are being killed.
    must(!verdict || *verdict == version || *verdict == 0 || version == 0, "two verdicts over one generation");
    verdict = version;
  }

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
  bool interrupted(const Worker& worker) const { return worker.entered <= sealed_ || worker.entered < prepared_; }
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

  // Now and then the scheduler forgets a worker for a while.
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
    worker.at = At::kWaiting;
    tell_(WorkerParked{worker.id, pid(worker)});
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
    worker.entered = prepare.identity;
    worker.rank = rank_of(worker);
    worker.step = prepare.version + 1;
    worker.word = pack(StepWord{worker.entered, worker.step, Vote::kOpen, false});
    worker.at = At::kEntered;
  }

  void answer(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
      return;
    }
    answered_[worker.id] = worker.state_word();
    worker.at = At::kReady;
    tell_(Ready{worker.id, worker.entered, worker.state_word()});
  }

  void await_activation(Worker& worker) {
    const Generation& generation = generation_of(worker);
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    } else if (generation.activate) {
      const std::vector<Rank>& sources = generation.activate->sources;
      const bool source = std::find(sources.begin(), sources.end(), worker.rank) != sources.end();
      const StateWord clean{StateKind::kClean, generation.activate->version};
      if (source && generation.activate->compare) {
        worker.state = pack(clean);
      }
      must(!source || worker.state_word() == clean, "a source is not clean at the generation's version");
      worker.pulled.clear();
      worker.flipped = source ? worker.flipped : std::array<uint64_t, 3>{};
      if (!source) {
        worker.state = pack(StateWord{StateKind::kHydrating, generation.activate->version});
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
    const std::vector<Rank>& sources = generation.activate->sources;
    const Rank rank = sources[loop_.below(sources.size())];
    const Worker& source = workers_.at(generation.prepare.members[rank].worker);
    if (source.alive && source.state_word() == StateWord{StateKind::kClean, generation.activate->version}) {
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
    worker.state = pack(StateWord{StateKind::kClean, generation.activate->version});
    worker.at = At::kHydrated;
    paths_.count("hydrated");
  }

  void join(Worker& worker) {
    Generation& generation = generation_of(worker);
    if (generation.prepare.resized) {  // in another world ranks get theirs anew
      worker.capsules[(worker.step - 1) % 2] = {worker.step - 1, capsule_of(worker)};
    }
    generation.formed.insert(worker.rank);
    if (is_formed(generation)) {
      check_equal(generation);
      loop_.after(pause(300), [this, identity = worker.entered] { hear_formed(identity); });
    }
    worker.at = At::kForming;
    wake_all();
  }

  // The agent's part: a message of the worker, which may lie in its socket when the words are sealed.
  void hear_formed(Identity identity) {
    tell_(Formed{identity});
    if (!in_order_ || identity != prepared_ || identity <= sealed_) {
      return;
    }
    for (auto& [id, worker] : workers_) {
      if (worker.noticed_dead && (!worker.assigned || worker.assigned->identity < identity)) {
        if (worker.assigned) {
          paths_.count("memory of the dead given back");
        }
        worker.capsules = {};
      }
    }
  }

  void check_equal(const Generation& generation) {
    const Version version = generation.prepare.version;
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
      const auto& capsule = worker.capsules[(worker.step - 1) % 2];
      must(worker.step == 1 || (capsule && *capsule == std::make_pair(worker.step - 1, capsule_of(worker))),
           "a rank starts a step without its capsule");
      go_on(worker);
    }
  }

  void go_on(Worker& worker) {
    if (worker.step > target_) {
      worker.at = At::kFinished;
      tell_(WorkerFinished{worker.id, worker.entered});
    } else {
      worker.at = At::kComputing;
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
      corrupted_.insert({worker.entered, worker.step});
      liars_.insert(worker.id);
      paths_.count("corruption");
    }
    if (compare_every_ > 0 && loop_.happens(chances_.flip)) {
      worker.flipped[loop_.below(3)] ^= mix(worker.id, loop_.below(1000)) | 1;
      liars_.insert(worker.id);
      paths_.count("flip");
    }
    generation_of(worker).reduced[worker.step].insert(worker.rank);
    worker.at = At::kReducing;
    wake_all();
  }

  void await_reduced(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    } else if (all(generation_of(worker).reduced[worker.step], worker)) {
      save_capsule(worker);
      worker.at = At::kVoting;
      if (communicates_) {
        worker.state = pack(StateWord{StateKind::kUpdating, worker.step - 1});
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
    std::set<Rank>& updated = generation_of(worker).updated[worker.step];
    if (updated.insert(worker.rank).second) {
      wake_all();
    }
    if (all(updated, worker)) {
      worker.at = At::kVoting;
    }
  }

  void restore(Worker& worker) {
    worker.state = pack(StateWord{StateKind::kClean, worker.step - 1});
    worker.at = At::kWaiting;
  }

  // Where a step that does not count is left for.
  At left() const { return communicates_ ? At::kRestoring : At::kWaiting; }

  // What forward changed in this rank.
  static void save_capsule(Worker& worker) {
    worker.capsules[worker.step % 2] = {worker.step, mix(worker.rank, next_content(worker))};
  }

  // The same in a redo, unlike next_content: the same gradients come out of the same state.
  StepDigest digest_of(const Worker& worker) const {
    return {mix(worker.content, worker.step) ^ worker.corrupted,
            compares_states(worker.step)
                ? mix(worker.content, mix(worker.flipped[0], mix(worker.flipped[1], worker.flipped[2]))) | 1
                : 0};
  }
  bool compares_states(Step step) const { return compare_every_ > 0 && step % compare_every_ == 0; }

  static Content next_content(const Worker& worker) {
    return mix(mix(worker.content, worker.step), worker.entered.generation) ^ worker.corrupted;
  }
  static uint64_t capsule_of(const Worker& worker) { return mix(worker.rank, worker.content); }

  // What the last voter finds when it compares what all wrote into their pages before they voted.
  bool agreed(const Worker& worker) {
    const std::vector<Member>& members = generation_of(worker).prepare.members;
    return std::all_of(members.begin(), members.end(),
                       [&](const Member& member) { return workers_.at(member.worker).digest == worker.digest; });
  }

  bool swap_word(Worker& worker, Vote from, Step next_step, Vote to) {
    if (worker.word != pack(StepWord{worker.entered, worker.step, from, false})) {
      return false;
    }
    worker.word = pack(StepWord{worker.entered, next_step, to, false});
    return true;
  }

  void vote(Worker& worker) {
    worker.digest = digest_of(worker);
    if (!swap_word(worker, Vote::kOpen, worker.step, Vote::kYes)) {
      worker.at = left();
      return;
    }
    generation_of(worker).voted[worker.step].insert(worker.rank);
    if (generation_of(worker).pausing) {
      generation_of(worker).pause_after.insert(worker.step);
    }
    worker.at = At::kVoted;
    wake_all();
  }

  void await_votes(Worker& worker) {
    Generation& generation = generation_of(worker);
    // Where there are several nodes, rank 0 records the decision before the others hear of it.
    const bool may_know = one_node_ || worker.rank == 0 || generation.decided >= worker.step;
    if (all(generation.voted[worker.step], worker) && generation.decided < worker.step && !agreed(worker)) {
      if (interrupted(worker)) {
        worker.at = At::kVerdict;
      } else if (generation.disagreed != worker.step) {  // one of them tells
        generation.disagreed = worker.step;
        tell_(WorkerFaulted{worker.id, worker.entered, worker.step, "the digests differ", "", false, false, true});
      }
    } else if (all(generation.voted[worker.step], worker) && may_know) {
      const bool recorded = swap_word(worker, Vote::kYes, worker.step, Vote::kDecided);
      worker.forward = false;
      worker.at = recorded ? At::kUpdating : At::kVerdict;
      if (recorded) {
        if (generation.decided < worker.step) {  // who decides later may be behind others that go on, and flip
          check_same_states(worker);
        }
        generation.decided = worker.step;
        wake_all();
        must(!corrupted_.contains({worker.entered, worker.step}), "a corrupted step was decided");
        ledger_.decided(worker.entered, worker.step);
        worker.state = pack(StateWord{StateKind::kUpdating, worker.step - 1});
      }
    } else if (interrupted(worker)) {
      worker.at = At::kVerdict;
    }
  }

  void check_same_states(const Worker& worker) {
    for (const Member& member : generation_of(worker).prepare.members) {
      must(!compares_states(worker.step) || workers_.at(member.worker).flipped == worker.flipped,
           "a step was decided on top of states that differ");
    }
  }

  void await_verdict(Worker& worker) {
    const std::optional<Version>& verdict = generation_of(worker).verdict;
    if (!verdict) {
      return;
    }
    if (*verdict < worker.step) {
      paths_.count("redo after a vote");
      worker.at = left();
      return;
    }
    must(*verdict == worker.step, "a verdict beyond what a survivor voted on");
    paths_.count("forward by verdict");
    worker.forward = true;
    worker.at = At::kUpdating;
    worker.state = pack(StateWord{StateKind::kUpdating, worker.step - 1});
  }

  void update(Worker& worker) {
    if (!communicates_ && loop_.happens(chances_.exception)) {
      paths_.count("exception in an update");
      worker.state = pack(StateWord{});
      raise(worker);
      return;
    }
    must(!corrupted_.contains({worker.entered, worker.step}), "a corrupted update was applied");
    worker.content = next_content(worker);
    ledger_.applied(worker.entered, worker.step, worker.content);
    worker.state = pack(StateWord{StateKind::kClean, worker.step});
    worker.at = worker.forward ? At::kWaiting : At::kClosing;
  }

  void close(Worker& worker) {
    if (!swap_word(worker, Vote::kDecided, worker.step + 1, Vote::kOpen)) {
      paths_.count("sealed between update and next step");
      worker.at = At::kWaiting;
      return;
    }
    tell_(Progress{worker.entered, worker.step, worker.digest});
    const bool pauses = generation_of(worker).pause_after.contains(worker.step) && worker.step < target_;
    ++worker.step;
    if (pauses) {
      paths_.count("paused");
      worker.at = At::kPaused;
      tell_(WorkerPaused{worker.id, worker.entered});
    } else {
      go_on(worker);
    }
  }

  void await_change(Worker& worker) {
    if (interrupted(worker)) {
      worker.at = At::kWaiting;
    }
  }

  void await_release(Worker& worker) {
    if (generation_of(worker).released) {
      must(worker.state_word() == StateWord{StateKind::kClean, target_}, "a rank was let go before the last step");
      worker.at = At::kWriting;
    } else if (interrupted(worker)) {
      worker.at = At::kWaiting;
    }
  }

  // A few times, with a chance to die each time.
  void write(Worker& worker) {
    if (loop_.below(4) > 0) {
      schedule(worker, pause(400));
      return;
    }
    worker.alive = false;
    worker.exited = true;
    tell_(WorkerExited{worker.id});
  }

  void raise(Worker& worker) {
    worker.at = At::kWaiting;
    tell_(WorkerFaulted{worker.id, worker.entered, worker.step, "ValueError", "Traceback"});
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

  // Another agent takes its place after a while, under a name of its own.
  void lose_node(NodeId node) {
    paths_.count("node lost");
    silence(node);
    loop_.after(200 + static_cast<int64_t>(loop_.below(3000)), [this, node] { tell_(NodeLost{node, "it burnt"}); });
    loop_.after(static_cast<int64_t>(loop_.below(20000)), [this] { attend(next_node_++); });
  }

  // Until the job knows that it needs another node it refuses one: it asks again.
  void attend(NodeId node) {
    if (!lost_.contains(node)) {
      tell_(NodeJoined{node, {ipv4(10, 0, 1, static_cast<uint8_t>(node)), 20000}});
      loop_.after(20000, [this, node] { attend(node); });
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
    worker.noticed_dead = true;
    tell_(WorkerDied{worker.id, pid(worker), signal, 0, signal == -1 ? "robust mutex" : "pidfd"});
  }

  Loop& loop_;
  Ledger& ledger_;
  Paths& paths_;
  const Chances& chances_;
  Version target_;
  std::function<void(Event)> tell_;
  std::set<NodeId> nodes_;
  std::set<NodeId> lost_;
  bool one_node_ = false;
  bool communicates_ = false;
  bool in_order_ = false;
  NodeId next_node_ = 100;
  std::map<WorkerId, Worker> workers_;
  std::set<WorkerId> killed_unborn_;
  std::set<WorkerId> liars_;
  Step compare_every_ = 0;  // 0: states are not compared, and not flipped
  bool flips_spread_ = false;
  std::set<std::pair<Identity, Step>> corrupted_;  // attempts in which a rank had other gradients
  std::map<Identity, Generation> generations_;
  std::map<WorkerId, StateWord> answered_;
  Identity prepared_;
  Identity sealed_;
};

}  // namespace keepstep::brain::simulation
