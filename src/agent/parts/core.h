// What all parts of an agent share: its configuration, its link to the coordinator, its brain and its workers, and ways
// to send messages. Agent (agent.h) owns the only instance.
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
  std::shared_ptr<EventLoop> loop;  // shared with the threads of watch_life(), which may outlive us
  std::unique_ptr<CoordinatorLink> link;
  Metrics metrics;
  brain::NodeBrain brain;
  Workers workers;                              // those whose memory is here
  std::shared_ptr<LogWatch> log_watch;          // null if there are no rules; shared with the pump's thread
  std::string job;                              // the job's name for commands
  std::set<pid_t> groups;                       // process groups of the dead that may still have members
  bool joined_job = false;                      // node 0 accepted us, and the coordinator knows of us
  std::map<brain::NodeId, std::string> joined;  // node 0: the accepted nodes and their names
  std::optional<JobEnd> end;
  int64_t kill_at_ns = 0;  // after the end of the job: when to kill what still runs
  bool gives_up = false;   // this node will get no more ranks
  int64_t refused = 0;     // number of refused messages
  // Passes an event to the brain and carries out what it decides.
  std::function<void(const brain::NodeEvent&)> step;
  // Ends the job as if the coordinator had ordered it.
  std::function<void(const brain::EndJob&)> end_job;

  // ---- questions ----
  WorkerProcess* find(brain::WorkerId id) const;
  // The worker's rank in the newest generation, if any.
  std::optional<brain::Rank> rank_of(const WorkerProcess& process) const;
  std::vector<brain::Rank> ranks_here() const;
  // Whether its death was noticed. It may still run until the death is confirmed.
  bool is_dead(const WorkerProcess& process) const;
  std::vector<std::shared_ptr<WorkerProcess>> living_members() const;
  // The number of ranks in the running generation; before the first one, of those that the job starts with at least.
  uint32_t world() const;
  std::string name_of(brain::NodeId node) const;  // node 0
  std::vector<brain::NodeId> attending_nodes() const;

  // ---- sending ----
  template <typename Message>
  void tell(WorkerProcess& process, brain::Identity identity, const Message& message, std::span<const int> fds = {}) {
    tell_text(process, identity, messages::write(message), fds);
  }
  // To another node's agent.
  template <typename Message>
  void route(brain::NodeId to, const Message& message) {
    route_text(to, messages::write(message));
  }
  void route_text(brain::NodeId to, std::string text);       // `text`: of messages::write()
  void stop_job(int exit_code, const std::string& because);  // asks the coordinator
  // A worker sent something that is not a message, or that it must not send. Writes a line to the journal.
  void refuse(const WorkerProcess& process, const std::string& because);

 private:
  void tell_text(WorkerProcess& process, brain::Identity identity, std::string text, std::span<const int> fds);
};

}  // namespace keepstep::agent
