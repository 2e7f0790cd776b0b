// What all parts of an agent stand on: what it was started with, its link to the coordinator, its brain and its
// workers, and how it tells others. Agent (agent.h) owns the one there is.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/control/coordinator_link.h"
#include "agent/loop/event_loop.h"
#include "agent/parts/agent_config.h"
#include "agent/watch/log_watch.h"
#include "agent/watch/metrics.h"
#include "agent/workers/output_pump.h"
#include "agent/workers/worker_process.h"
#include "brain/node/node.h"
#include "messages/agent_messages.h"
#include "messages/rank_messages.h"
#include "observe/journal.h"

namespace keepstep::agent {

// In rank order.
std::vector<brain::NodeId> nodes_of(const brain::RankTable& table);

using Workers = std::map<brain::WorkerId, std::shared_ptr<WorkerProcess>>;

struct AgentCore {
  AgentCore(AgentConfig config, observe::Journal& journal, OutputPump& pump)
      : config(std::move(config)), journal(journal), pump(pump), metrics(journal), brain(this->config.node) {}
  AgentCore(const AgentCore&) = delete;  // parts refer to it
  AgentCore& operator=(const AgentCore&) = delete;

  AgentConfig config;
  observe::Journal& journal;
  OutputPump& pump;
  std::shared_ptr<EventLoop> loop;  // shared with the threads that watch lives: they may outlive us
  std::unique_ptr<CoordinatorLink> link;
  Metrics metrics;
  brain::NodeBrain brain;
  Workers workers;                              // whose memory is here
  std::shared_ptr<LogWatch> log_watch;          // null without rules; shared with the pump's thread
  std::string job;                              // its name for commands
  std::set<pid_t> groups;                       // process groups of the dead that may still have members
  bool joined_job = false;                      // node 0 found no difference, and the coordinator knows of us
  std::map<brain::NodeId, std::string> joined;  // node 0: the nodes that fit, by name
  std::optional<JobEnd> end;
  int64_t kill_at_ns = 0;  // after the end: what still runs then is killed
  bool gives_up = false;   // this node is to have no ranks any more
  int64_t refused = 0;     // messages
  // Something happened: the brain hears of it, and what it decides is carried out.
  std::function<void(const brain::NodeEvent&)> step;
  // As if the coordinator had said so.
  std::function<void(const brain::EndJob&)> end_job;

  // ---- questions ----
  WorkerProcess* find(brain::WorkerId id) const;
  // In the newest generation; none: it has none.
  std::optional<brain::Rank> rank_of(const WorkerProcess& process) const;
  std::vector<brain::Rank> ranks_here() const;
  // Its death was noticed. Until it is confirmed it may still run.
  bool is_dead(const WorkerProcess& process) const;
  std::vector<std::shared_ptr<WorkerProcess>> living_members() const;
  // Ranks of the running generation; before there is one, those that the job starts with at least.
  uint32_t world() const;
  std::string name_of(brain::NodeId node) const;  // node 0
  std::vector<brain::NodeId> attending_nodes() const;

  // ---- telling others ----
  template <typename Message>
  void tell(WorkerProcess& process, brain::Identity identity, const Message& message, std::span<const int> fds = {}) {
    tell_text(process, identity, messages::write(message), fds);
  }
  // To another node's agent.
  template <typename Message>
  void route(brain::NodeId to, const Message& message) {
    route_text(to, messages::write(message));
  }
  void route_text(brain::NodeId to, std::string text);       // of write()
  void stop_job(int exit_code, const std::string& because);  // asks the coordinator
  // What a worker said is no message, or one that it must not say: a line in the journal.
  void refuse(const WorkerProcess& process, const std::string& because);

 private:
  void tell_text(WorkerProcess& process, brain::Identity identity, std::string text, std::span<const int> fds);
};

}  // namespace keepstep::agent
