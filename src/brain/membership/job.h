// The facts of a job that all parts of the membership brain read: who is there, where, and how far they got. Pure.
//
// Membership (membership.h) owns the only Job; only it and its phases (phases.h) write phase, versions, verdict and
// round. All parts have a reference to it: they query it, journal, start and end workers, and write the members marked
// below. What they decide about phases they return.
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
  uint32_t nodes = 1;        // the job starts once this many have joined; each gets its share of consecutive ranks
  uint32_t spare_nodes = 0;  // that wait beyond those, with ids from `nodes` on; if 0, any ids will do
  uint32_t world_size = 1;   // ranks, at least one per node
  uint32_t spares = 0;       // per node
  LadderConfig ladder;
  Time repeat_after = std::chrono::milliseconds(500);  // unanswered Seal, Prepare
  Time interrupt_timeout = std::chrono::seconds(60);   // a survivor that does not leave its step is killed
  Time start_timeout = std::chrono::seconds(600);      // a worker that does not park, or a newcomer that is not Ready
  Time node_timeout = std::chrono::seconds(60);        // for another node to take the place of a lost one
  int start_failures = 3;  // a node's workers without a rank that may be lost in a row with no progress in between
  // An elastic job. `nodes` is the fewest it starts with; `world_size` then depends on which nodes are there.
  std::optional<ElasticConfig> elastic;
  uint32_t max_nodes = 0;
  uint32_t ranks_per_node = 0;
  uint32_t ranks_per_replica = 1;              // divides ranks_per_node, or is a multiple of it
  Time start_grace = std::chrono::seconds(2);  // for more nodes, once there are enough
};

enum class Phase { kWaiting, kGathering, kForming, kRunning, kSealing, kEnded };
enum class Cause { kStart, kReplace, kRestart };  // why the job gathers

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
  Version progress = 0;  // the newest committed step known
  Version dead_had = 0;  // the newest step that a member which died since the last start had committed
  // Recoverable functions that all ranks returned from before they entered the current one. Versions, and whatever was
  // formed, held or saved, belong to the current one.
  uint32_t functions = 0;
  bool ever_formed = false;
  std::optional<Time> longest_start;  // before that: from a worker's spawn to its recoverable function
  Round round;                        // the newest one prepared
  std::optional<Decide> decided;      // over the previous generation

  std::map<NodeId, NodeEndpoint> nodes;  // those attending; Sizing releases those that leave
  // They get no ranks until they join again, unless there is no other node. Written by NodeReplacement, and by Sizing
  // when growth fails repeatedly.
  std::set<NodeId> bad_nodes;
  struct Leaving {
    std::string because;
    Time by{};
  };
  std::map<NodeId, Leaving> leaving_nodes;  // were told to leave; written by Sizing
  Roster roster;
  Placement placement;
  Holdings holdings;
  Effects effects;  // of this event, so far

  // ---- questions ----
  bool alive(const Member& member) const;
  bool anybody_alive() const;  // of the round's members
  // Every living member is recoverable. If none is alive: whether the lost one was.
  bool survivors_recoverable(bool the_lost_one_was) const;
  // An elastic job, while it forms or runs: no member has a recoverable function, and none is gone. All that can be
  // done for such a script is to tell it: it saves what it needs and ends (keepstep.elastic_event_detected).
  bool is_plain() const;
  Step current_step() const { return std::max(version, progress) + 1; }
  // Of a sealed member, after the verdict: it has the state at `version`, or will get to it.
  bool holds_state(Rank rank) const { return holdings.holds(round.members()[rank].worker, version); }
  // `resharded`: by other ranks, so only copies are sources, not processes. `only`: what these nodes have; null: all
  // nodes. std::nullopt if no version is whole; `missing` (may be null) then says why.
  std::optional<Holdings::Kept> kept(const Verdict& verdict, bool resharded, const std::set<NodeId>* only,
                                     std::string* missing) const;
  uint32_t max_ranks_of_a_node() const;
  bool waits_unused(NodeId node) const { return bad_nodes.contains(node) && !placement.has_ranks(node); }
  // A node without ranks keeps as many workers ready as a lost node may have had ranks, unless its own ranks were taken
  // away.
  uint32_t spares_of(NodeId node) const;
  // A spawned worker must ask for a rank by then.
  Time start_deadline(const Roster::Worker& worker) const { return worker.spawned_at + config.start_timeout; }

  // ---- workers ----
  WorkerId spawn(NodeId node, bool spare, const std::string& because);
  void take(WorkerId id, Rank rank, Placement::Origin origin);
  void retire(WorkerId id);
  void kill(WorkerId id, const std::string& because);
  // The notice of a death may precede the exit: make sure of it. fault_detected has journalled the reason.
  void fence(WorkerId id, const std::string& because);
  void end_worker(WorkerId id, const std::string& because);  // retires and kills it
  std::vector<WorkerId> lose_workers_of(NodeId node);        // returns those that were alive until now

  // ---- effects ----
  void emit(Effect effect) { effects.push_back(std::move(effect)); }
  void journal(const char* event, const std::string& because, std::vector<Field> fields = {});
  void say(const char* event, const std::string& because, std::vector<Field> fields = {});  // on the console, too
};

}  // namespace keepstep::brain
