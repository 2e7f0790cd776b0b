// The facts of a job that all parts of the membership brain read: who is there, where, and how far they came. Pure.
//
// Membership (membership.h) owns the one Job; it and its phases (phases.h) alone write phase, versions, verdict and
// round. All parts have a reference to it: they ask, journal, start and end workers, and write what is said below; what
// they decide about phases they return.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/elastic/elastic_policy.h"
#include "brain/ladder/recovery_ladder.h"
#include "brain/membership/holdings.h"
#include "brain/membership/membership_messages.h"
#include "brain/membership/placement.h"
#include "brain/membership/roster.h"
#include "brain/membership/round.h"
#include "brain/types.h"

namespace keepstep::brain {

struct MembershipConfig {
  uint32_t term = 1;
  uint32_t nodes = 1;        // the job starts once so many have joined; each gets its share of consecutive ranks
  uint32_t spare_nodes = 0;  // nodes beyond those, with ids from `nodes` on (else ids are free), that wait
  uint32_t world_size = 1;   // ranks, at least one a node
  uint32_t spares = 0;       // on each node
  LadderConfig ladder;
  Time repeat_after = std::chrono::milliseconds(500);  // unanswered Seal, Prepare
  Time interrupt_timeout = std::chrono::seconds(60);   // a survivor that does not leave its step is killed
  Time start_timeout = std::chrono::seconds(600);      // a worker that does not park, a newcomer that is not Ready, too
  Time node_timeout = std::chrono::seconds(60);        // for another node to take the place of a lost one
  int start_failures = 3;  // workers of a node, without a rank, that may be lost in a row with no progress in between
  // An elastic job. `nodes` is the fewest that it starts with, `world_size` then follows from who is there.
  std::optional<ElasticConfig> elastic;
  uint32_t most_nodes = 0;
  uint32_t ranks_per_node = 0;
  uint32_t ranks_per_replica = 1;              // divides ranks_per_node, or is a multiple of it
  Time start_grace = std::chrono::seconds(2);  // for more nodes, once enough have come
};

enum class Phase { kWaiting, kGathering, kForming, kRunning, kSealing, kEnded };
enum class Cause { kStart, kReplace, kRestart };  // why we gather

struct Job {
  explicit Job(MembershipConfig config);
  Job(const Job&) = delete;  // its parts refer to it
  Job& operator=(const Job&) = delete;

  MembershipConfig config;
  Time now{};
  Phase phase = Phase::kWaiting;
  Cause cause = Cause::kStart;
  std::string because;   // of this gathering; NodeReplacement and Sizing write it, too
  Version version = 0;   // the floor: the newest announced verdict
  Version progress = 0;  // the newest committed step that we heard of
  // Recoverable functions that all ranks returned from, before they entered this one. Versions, and what was formed,
  // held or saved, are of this one.
  uint32_t functions = 0;
  bool ever_formed = false;
  Round round;                    // the newest that was prepared
  std::optional<Decide> decided;  // over the generation before

  std::map<NodeId, NodeEndpoint> nodes;  // that attend; Sizing parts from those that leave
  // Until they join again they get no ranks as long as there is another node. Of NodeReplacement, and of Sizing where
  // growth fails again and again.
  std::set<NodeId> bad_nodes;
  struct Leaving {
    std::string because;
    Time by{};
  };
  std::map<NodeId, Leaving> leaving_nodes;  // were told to leave; of Sizing
  Roster roster;
  Placement placement;
  Holdings holdings;
  Effects effects;  // of this event, so far

  // ---- questions ----
  bool alive(const Member& member) const;
  bool anybody_alive() const;  // of the round's members
  // Every living member is recoverable, and there is one, or the lost one was.
  bool survivors_recoverable(bool the_lost_one_was) const;
  // An elastic job, while it forms or runs: no member has a recoverable function, and none is gone. Nothing can be done
  // for such a script but to tell it: it saves what it needs, and ends (keepstep.elastic_event_detected).
  bool is_plain() const;
  Step current_step() const { return std::max(version, progress) + 1; }
  // Of a sealed member, after the verdict: it has the state at `version`, or comes to it.
  bool holds_state(Rank rank) const { return holdings.holds(round.members()[rank].worker, version); }
  // `resharded`: by other ranks, so that processes are no sources, only copies. `only`: what these nodes have; null:
  // all. Nothing: no version is whole; `missing` (may be null) then says why.
  std::optional<Holdings::Kept> kept(const Verdict& verdict, bool resharded, const std::set<NodeId>* only,
                                     std::string* missing) const;
  uint32_t most_ranks_of_a_node() const;
  bool waits_unused(NodeId node) const { return bad_nodes.contains(node) && !placement.has_ranks(node); }
  // A node without ranks keeps as many workers ready as a lost node may have had ranks, unless its ranks were taken
  // away.
  uint32_t spares_of(NodeId node) const;
  // A worker that was spawned has to ask for a rank by then.
  Time start_deadline(const Roster::Worker& worker) const { return worker.spawned_at + config.start_timeout; }

  // ---- workers ----
  WorkerId spawn(NodeId node, bool spare, const std::string& because);
  void take(WorkerId id, Rank rank, Placement::Origin origin);
  void retire(WorkerId id);
  void kill(WorkerId id, const std::string& because);
  // The notice of a death may come before the exit: make sure of it. fault_noticed has told the journal why.
  void fence(WorkerId id, const std::string& because);
  void end_worker(WorkerId id, const std::string& because);  // retires and kills it
  std::vector<WorkerId> lose_workers_of(NodeId node);        // those that lived until now

  // ---- effects ----
  void emit(Effect effect) { effects.push_back(std::move(effect)); }
  void journal(const char* event, const std::string& because, std::vector<Field> fields = {});
  void say(const char* event, const std::string& because, std::vector<Field> fields = {});  // on the console, too
};

}  // namespace keepstep::brain
