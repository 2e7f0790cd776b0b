#include "agent/parts/core.h"

#include <algorithm>

#include "agent/workers/message_parts.h"
#include "base/log.h"
#include "messages/envelope.h"

namespace keepstep::agent {

std::vector<brain::NodeId> nodes_of(const brain::RankTable& table) {
  std::vector<brain::NodeId> nodes;
  for (const brain::RankTable::Entry& entry : table.entries()) {
    if (std::ranges::find(nodes, entry.node) == nodes.end()) {
      nodes.push_back(entry.node);
    }
  }
  return nodes;
}

WorkerProcess* AgentCore::find(brain::WorkerId id) const {
  const auto found = workers.find(id);
  return found == workers.end() ? nullptr : found->second.get();
}

std::optional<brain::Rank> AgentCore::rank_of(const WorkerProcess& process) const {
  const brain::NodeBrain::Worker* const known = brain.find(process.id);
  return known == nullptr ? std::nullopt : known->rank;
}

std::vector<brain::Rank> AgentCore::ranks_here() const {
  std::vector<brain::Rank> ranks;
  if (brain.prepared() != nullptr) {
    for (const brain::Member& member : brain.prepared()->members) {
      ranks.push_back(member.rank);
    }
  }
  return ranks;
}

bool AgentCore::is_dead(const WorkerProcess& process) const {
  const brain::NodeBrain::Worker* const known = brain.find(process.id);
  return known == nullptr || known->dead;
}

std::vector<std::shared_ptr<WorkerProcess>> AgentCore::living_members() const {
  std::vector<std::shared_ptr<WorkerProcess>> members;
  for (const brain::WorkerId id : brain.living_members()) {
    members.push_back(workers.at(id));
  }
  return members;
}

uint32_t AgentCore::world() const {
  return brain.prepared() == nullptr ? config.spec.world_size() : brain.prepared()->table.world_size();
}

std::string AgentCore::name_of(brain::NodeId node) const {
  const auto name = joined.find(node);
  return name == joined.end() ? config.node_name : name->second;
}

std::vector<brain::NodeId> AgentCore::attending_nodes() const {
  return config.size_news ? config.size_news().nodes : std::vector<brain::NodeId>{config.node};
}

void AgentCore::tell_text(WorkerProcess& process, brain::Identity identity, std::string text,
                          std::span<const int> fds) {
  const std::string name(messages::name_of(text));
  const Status status =
      process.outbox.send(process.socket, messages::encode({config.node, identity, std::move(text)}), fds);
  if (status.ok() || absl::IsUnavailable(status)) {
    return;  // if it is gone, that is noticed elsewhere
  }
  journal.write("not_told", identity,
                absl::StrFormat("worker %d (pid %d): %s", process.id, process.pid, status.message()),
                {{"worker", int64_t{process.id}}, {"message", name}});
  kill_process(process);  // it would wait forever, or go on without the message
}

void AgentCore::route_text(brain::NodeId to, std::string text) {
  const StatusOr<std::vector<std::string>> parts = in_parts(std::move(text));
  Status status = parts.status();
  for (size_t i = 0; status.ok() && i < parts->size(); ++i) {
    status = link->route(to, (*parts)[i]);
  }
  if (!status.ok()) {
    spdlog::warn("node {}: {}", to, std::string(status.message()));
  }
}

void AgentCore::refuse(const WorkerProcess& process, const std::string& because) {
  journal.write("refused", {}, because, {{"worker", int64_t{process.id}}, {"count", ++refused}});
}

void AgentCore::stop_job(int exit_code, const std::string& because) {
  link->send(brain::StopRequested{exit_code, because});
}

}  // namespace keepstep::agent
