// The node daemon: it starts and watches workers, and owns the memory that must outlive them. It is the shell of two
// brains. This node's brain (brain/node/node.h) receives what the coordinator's brain (brain/membership/membership.h)
// decided, and the deaths and messages of workers. The agent carries out what it decides.
//
//   coordinator's orders; workers' deaths (mutex, pidfd), their messages  ->  brain::NodeBrain
//   its effects  ->  processes, pages, messages to workers, events for the coordinator
//
// One thread, an EventLoop; run() is that thread.
#pragma once

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/memory/generation.h"
#include "agent/nodes/clocks.h"
#include "agent/nodes/joining.h"
#include "agent/nodes/other_nodes.h"
#include "agent/parts/agent_config.h"
#include "agent/parts/commands.h"
#include "agent/parts/commits.h"
#include "agent/parts/core.h"
#include "agent/parts/elastic_size.h"
#include "agent/parts/faults.h"
#include "agent/parts/hangs.h"
#include "agent/parts/job_store.h"
#include "agent/parts/memory_questions.h"
#include "agent/parts/moment.h"
#include "agent/parts/node_health.h"
#include "agent/parts/notice.h"
#include "agent/parts/pace.h"
#include "agent/parts/programs.h"
#include "agent/parts/saves.h"
#include "agent/parts/vaults.h"
#include "agent/parts/worker_variables.h"
#include "agent/workers/output_pump.h"
#include "agent/workers/starter.h"
#include "agent/workers/temp_folder.h"
#include "brain/node/node.h"
#include "messages/rank_messages.h"
#include "observe/journal.h"

namespace keepstep::agent {

class PublicationService;
class RingService;

// The communicator's sizes for this job; the same in the agent and its workers.
comm::CommConfig comm_config(const JobSpec& spec);
// Shared memory that the agent allocates for all workers of this node.
uint64_t shared_memory_bytes(const JobSpec& spec);

class Agent {
 public:
  // `journal`, `pump`, `status` must outlive the agent. The calling process becomes the subreaper of its workers.
  Agent(AgentConfig config, observe::Journal& journal, OutputPump& pump, observe::StatusLine& status);
  ~Agent();

  // Connects, starts everything, and returns when the job is over and no worker is left. `signals` (blocked in every
  // thread) end the job; a second signal ends it at once.
  StatusOr<JobEnd> run(const sigset_t& signals);

 private:
  // agent.cc: start and end
  StatusOr<std::unique_ptr<CoordinatorLink>> attend();
  void on_signal();
  void open_services();
  void finish_if_empty();
  void periodic();

  // agent_effects.cc: what the brains decided
  void carry_out(const brain::Effect& effect);
  void step(const brain::NodeEvent& event);
  void carry_out(const brain::Tell& effect);
  void carry_out(const brain::StartWorker& effect);
  void carry_out(const brain::SealWords& effect);
  void carry_out(const brain::Interrupt& effect);
  void carry_out(const brain::Announce& effect);
  void carry_out(const brain::Begin& effect);
  void carry_out(const brain::Inherit& effect);
  void carry_out(const brain::ForgetCapsules& effect);
  void carry_out(const brain::Assign& effect);
  void carry_out(const brain::GoOn& effect);
  void carry_out(const brain::Forget& effect);
  void carry_out(const brain::ForgetUnused& effect);
  void carry_out(const brain::TellPause& effect);
  void carry_out(const brain::TellRelease& effect);
  void carry_out(const brain::HasFormed& effect);
  void carry_out(const brain::KillProcess& effect);
  void carry_out(const brain::FreeMemory& effect);
  void carry_out(const brain::Close& effect);
  void part(const brain::ReleaseNode& effect);

  // agent_workers.cc: messages of workers, and how they end
  void on_started(brain::WorkerId id, pid_t pid, Fd pidfd, const std::string& how);
  void on_packet(const std::shared_ptr<WorkerProcess>& process);
  void on_message(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                  const messages::FromRank& message, std::vector<Fd> fds);
  void on_attach(const std::shared_ptr<WorkerProcess>& process, const messages::Attach& attach);
  void on_parked(WorkerProcess& process, const messages::Parked& parked);
  void on_finished(const WorkerProcess& process, brain::Identity identity, const messages::Finished& finished);
  void on_hydrated(const WorkerProcess& process, brain::Identity identity, const messages::Hydrated& hydrated);
  void read_last_words(const std::shared_ptr<WorkerProcess>& process);
  void on_death_notice(const std::shared_ptr<WorkerProcess>& process);
  void on_exit(std::shared_ptr<WorkerProcess> process);

  AgentCore core_;
  const comm::CommConfig comm_config_;
  const rank::WorkerLayout layout_;
  std::unique_ptr<Starter> starter_;
  Fd signal_fd_;
  int signals_ = 0;
  TempFolder temp_;

  // ---- parts ----
  JobStore store_{core_};
  Vaults vaults_{core_};
  WorkerVariables variables_{core_, temp_};
  Saves saves_{core_};
  Clocks clocks_{core_};
  Joining joining_{core_, clocks_};
  ElasticSize elastic_{core_};
  Notice notice_{core_};
  NodeHealth health_{core_};
  Hangs hangs_{core_};
  Pace pace_{core_};
  Faults faults_{core_};
  Commits commits_{core_, pace_};
  Programs programs_;
  Moment moment_;
  // Set once there is a loop.
  std::unique_ptr<MemoryQuestions> memory_questions_;
  std::unique_ptr<Commands> commands_;
  std::unique_ptr<RingService> rings_;                   // null if no rank can ask for rings
  std::unique_ptr<PublicationService> publications_;     // null if no rank can publish
  std::unique_ptr<BackgroundWriter> background_writer_;  // null if no rank can hand over its saves
  std::unique_ptr<OtherNodes> others_;

  std::map<brain::Identity, std::unique_ptr<Generation>> generations_;  // the newest and the previous one
  uint32_t started_ranks_ = 0;                                          // workers here at the start of the job
  messages::Texts fingerprint_;
  bool preload_sent_ = false;
  std::string rings_socket_;   // where ranks ask for rings; empty if they cannot
  std::string writer_socket_;  // where they hand over saves; empty if they cannot
  std::vector<brain::NodeId> with_ranks_;
};

}  // namespace keepstep::agent
