#include "brain/membership/job.h"

#include <algorithm>
#include <utility>

#include "brain/require.h"

namespace keepstep::brain {

Job::Job(MembershipConfig given) : config(std::move(given)), round(Identity{config.term, 0}) {
  require(config.repeat_after > Time{}, "what is not answered is repeated after a time");
  require(config.nodes >= 1 && config.nodes <= kMaxTableEntries, "a job has 1 to 65535 nodes");
  if (config.elastic) {
    require(config.max_nodes >= config.nodes && config.ranks_per_node >= 1 && config.ranks_per_replica >= 1 &&
                (config.ranks_per_node % config.ranks_per_replica == 0 ||
                 config.ranks_per_replica % config.ranks_per_node == 0),
            "an elastic job says how many nodes it may have, and its replicas fill nodes or parts of them");
    config.world_size = config.max_nodes * config.ranks_per_node;
  }
  require(config.world_size <= kMaxWorldSize && max_ranks_of_a_node() <= 65535, "too many ranks, or too many a node");
}

// ---- questions ----------------------------------------------------------------------------------------------------

bool Job::alive(const Member& member) const { return roster.at(member.worker).status == Roster::Status::kMember; }

bool Job::anybody_alive() const {
  return std::any_of(round.members().begin(), round.members().end(),
                     [this](const Member& member) { return alive(member); });
}

bool Job::survivors_recoverable(bool the_lost_one_was) const {
  bool any = the_lost_one_was;
  for (const Member& member : round.members()) {
    if (!alive(member)) {
      continue;
    }
    if (!roster.at(member.worker).recoverable) {
      return false;
    }
    any = true;
  }
  return any;
}

bool Job::is_plain() const {
  return config.elastic && (phase == Phase::kForming || phase == Phase::kRunning) && !round.members().empty() &&
         std::all_of(round.members().begin(), round.members().end(),
                     [this](const Member& member) { return alive(member) && !roster.at(member.worker).recoverable; });
}

std::optional<Holdings::Kept> Job::kept(const Verdict& verdict, bool resharded, const std::set<NodeId>* only,
                                        std::string* missing) const {
  std::vector<SealedWord> living;
  for (const auto& [rank, word] : round.words()) {
    const Member& member = round.members()[rank];
    if (alive(member) && (only == nullptr || only->contains(member.node))) {
      living.push_back(word);
    }
  }
  return holdings.newest_kept(verdict, round.identity(), living, resharded, only, missing);
}

uint32_t Job::max_ranks_of_a_node() const {
  return config.elastic ? config.ranks_per_node : (config.world_size + config.nodes - 1) / config.nodes;
}

uint32_t Job::spares_of(NodeId node) const {
  if (waits_unused(node) || leaving_nodes.contains(node)) {
    return 0;
  }
  if (config.elastic) {
    return config.spares + config.ranks_per_node - placement.ranks_on(node);
  }
  return config.spares + (placement.has_ranks(node) ? 0 : max_ranks_of_a_node());
}

// ---- workers ------------------------------------------------------------------------------------------------------

WorkerId Job::spawn(NodeId node, bool spare, const std::string& why) {
  const WorkerId id = roster.add(node, now);
  roster.look_again(id, start_deadline(roster.at(id)));
  journal("spawn_requested", why, {{"worker", int64_t{id}}, {"spare", spare}});
  emit(Spawn{node, id, spare, why, functions});
  return id;
}

void Job::take(WorkerId id, Rank rank, Placement::Origin origin) {
  roster.take(id, rank);
  placement.give(rank, id, origin, roster.at(id).status != Roster::Status::kStarting);
}

void Job::retire(WorkerId id) {
  roster.retire(id);
  const Roster::Worker& worker = roster.at(id);
  if (!worker.taken) {
    return;
  }
  if (round.is_member(id, worker.rank)) {
    round.await_no_longer(worker.rank);
  }
  placement.take_back(worker.rank, id);
}

void Job::kill(WorkerId id, const std::string& why) {
  Roster::Worker& worker = roster.at(id);
  if (!std::exchange(worker.killed_at, now)) {
    journal("kill", why, {{"worker", int64_t{id}}, {"pid", worker.pid}});
  }
  roster.look_again(id, now + config.repeat_after);
  emit(Kill{id, why, worker.node});
}

void Job::fence(WorkerId id, const std::string& why) { emit(Kill{id, "fencing: " + why, roster.at(id).node}); }

void Job::end_worker(WorkerId id, const std::string& why) {
  retire(id);
  kill(id, why);
}

std::vector<WorkerId> Job::lose_workers_of(NodeId node) {
  std::vector<WorkerId> lived = roster.lose(node);
  for (const WorkerId id : lived) {
    retire(id);
  }
  return lived;
}

// ---- effects ------------------------------------------------------------------------------------------------------

void Job::journal(const char* event, const std::string& why, std::vector<Field> fields) {
  emit(Journal{event, why, std::move(fields)});
}

void Job::say(const char* event, const std::string& why, std::vector<Field> fields) {
  emit(Journal{event, why, std::move(fields), true});
}

}  // namespace keepstep::brain
