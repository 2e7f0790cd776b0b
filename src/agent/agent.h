// The node daemon: starts and watches workers, and owns the memory that must outlive them. The shell of two brains:
// what the coordinator's decided (brain/membership/membership.h) goes into this node's (brain/node/node.h), and so do
// deaths and messages of workers; what comes out is carried out here.
//
//   orders of the coordinator; worker's death (mutex, pidfd), messages  ->  brain::NodeBrain
//   its effects  ->  processes, pages, messages to workers, events for the coordinator
//
// One thread, an EventLoop; run() is that thread.
#pragma once

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/control/control_door.h"
#include "agent/loop/event_loop.h"
#include "agent/memory/generation.h"
#include "agent/memory/shard_vaults.h"
#include "agent/memory/vault_maker.h"
#include "agent/parts/agent_config.h"
#include "agent/parts/clocks.h"
#include "agent/parts/core.h"
#include "agent/parts/elastic_size.h"
#include "agent/parts/faults.h"
#include "agent/parts/hangs.h"
#include "agent/parts/joining.h"
#include "agent/parts/memory_questions.h"
#include "agent/parts/node_health.h"
#include "agent/parts/notice.h"
#include "agent/parts/pace.h"
#include "agent/parts/saves.h"
#include "agent/store/shared_store.h"
#include "agent/workers/message_parts.h"
#include "agent/workers/output_pump.h"
#include "agent/workers/starter.h"
#include "agent/workers/temp_folder.h"
#include "agent/workers/torchrun_env.h"
#include "brain/node/node.h"
#include "messages/rank_messages.h"
#include "observe/journal.h"
#include "observe/status_line.h"

namespace keepstep::agent {

class DrainProcess;
class RingService;

// The communicator's sizes for this job; the same on agent and workers.
comm::CommConfig comm_config(const JobSpec& spec);
// TCP ports kept for MASTER_PORT behind those of the local ranks: generations take turns.
inline constexpr uint32_t kMasterPorts = 4;
// Shared memory the agent allocates for all workers of this node.
uint64_t shared_memory_bytes(const JobSpec& spec);

class Agent {
 public:
  // `journal`, `pump`, `status` must outlive the agent. The calling process becomes the subreaper of its workers.
  Agent(AgentConfig config, observe::Journal& journal, OutputPump& pump, observe::StatusLine& status);
  ~Agent();

  // Connects, starts everything, and returns when the job is over and no worker is left. `signals` (blocked in every
  // thread) end the job; the second one at once.
  StatusOr<JobEnd> run(const sigset_t& signals);

 private:
  // agent.cc: start, end
  void on_signal();
  void open_rings();
  void open_drain();
  void open_temp();
  void write_memory();
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
  nlohmann::json job_variables() const;
  std::vector<Generation::Holder> pages_of(const std::vector<brain::Holder>& holders) const;
  void choose_master(const brain::Prepare& prepare);
  RankAssignment assignment_of(brain::Rank rank) const;
  void part(const brain::Part& effect);
  void let_leavers_out();

  // agent_workers.cc: what workers say and how they end
  void on_started(brain::WorkerId id, pid_t pid, Fd pidfd, const std::string& how);
  void on_packet(const std::shared_ptr<WorkerProcess>& process);
  void on_message(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                  const messages::FromRank& message, std::vector<Fd> fds);
  void on_attach(const std::shared_ptr<WorkerProcess>& process, const messages::Attach& attach);
  void on_parked(WorkerProcess& process, const messages::Parked& parked);
  void on_finished(const WorkerProcess& process, brain::Identity identity, const messages::Finished& finished);
  void on_program_attached(const WorkerProcess& process);
  void on_programs_attach();
  // Reads what ranks committed and logged since the last time; also of the dead.
  void collect(WorkerProcess& process);
  void collect_all();
  void on_commit(const WorkerProcess& process, const rank::CommitRecord& record);
  void on_hydrated(const WorkerProcess& process, brain::Identity identity, const messages::Hydrated& hydrated);
  void on_saved(brain::Identity identity, const messages::Saved& saved);
  void on_note(const WorkerProcess& process, brain::Identity identity, const messages::Note& note);
  void on_vault(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                const messages::VaultQuestion& question);
  void on_store(const WorkerProcess& process, const messages::StoreQuestion& question, std::vector<Fd> fds);
  void read_last_words(const std::shared_ptr<WorkerProcess>& process);
  void on_death_notice(const std::shared_ptr<WorkerProcess>& process);
  void on_exit(std::shared_ptr<WorkerProcess> process);
  void keep_losses(const std::vector<Generation::Holder>& holders);
  void refuse(const WorkerProcess& process, const std::string& because);
  void say_recovered();
  std::string note() const;
  void update_status();

  // agent_control.cc: what comes through the control door
  void open_door();
  void keep_door_open();
  void on_request(const nlohmann::json& request, const ControlDoor::Answer& answer);
  void open_endpoint();
  void on_asked(const std::string& request, const std::function<void(const std::string&)>& answer);
  nlohmann::json describe() const;
  void answer_stacks(bool native, const ControlDoor::Answer& answer);

  // agent_nodes.cc: what agents of several nodes say to one another
  StatusOr<std::unique_ptr<CoordinatorLink>> attend();
  void on_routed(brain::NodeId from, const std::string& text);
  Status on_said_to_first(brain::NodeId from, const std::string& text);
  Status on_said_by_first(const std::string& text);
  Status on_said(brain::NodeId from, const std::string& text);
  void carry_out(const SharedStore::Outcome& outcome);
  void tell_that_programs_attach(brain::NodeId to);

  AgentCore core_;
  observe::StatusLine& status_;
  comm::CommConfig comm_config_;
  rank::WorkerLayout layout_;
  std::unique_ptr<Starter> starter_;
  SharedStore store_;
  ShardVaults vaults_;
  std::unique_ptr<VaultMaker> vault_maker_;
  PartJoiner message_parts_;
  Fd signal_fd_;
  int signals_ = 0;

  // ---- its parts ----
  Saves saves_;
  Clocks clocks_{core_};
  Joining joining_{core_, clocks_};
  ElasticSize elastic_{core_};
  Notice notice_{core_};
  NodeHealth health_{core_};
  Hangs hangs_{core_};
  Pace pace_{core_};
  Faults faults_{core_};
  std::unique_ptr<MemoryQuestions> memory_questions_;

  TempFolder temp_;
  std::map<brain::Identity, std::unique_ptr<Generation>> generations_;  // the newest, and the one before
  std::string master_addr_;
  uint16_t master_port_ = 0;
  uint32_t started_ranks_ = 0;  // workers that the job started with here
  bool first_commit_told_ = true;
  uint32_t recoveries_ = 0;
  std::string note_ = "starting";
  messages::Texts fingerprint_;
  bool preload_sent_ = false;
  bool programs_attach_ = false;  // --no-python, and one of the job's programs did: they can wait for a rank
  std::unique_ptr<ControlDoor> door_;
  int64_t door_checked_ns_ = 0;
  std::string rings_socket_;             // where ranks ask for rings; empty: nowhere
  std::unique_ptr<RingService> rings_;   // null then
  std::string drain_socket_;             // where ranks hand over what they save; empty: nowhere
  std::unique_ptr<DrainProcess> drain_;  // null then
  std::vector<brain::NodeId> with_ranks_;
  int64_t refused_ = 0;  // messages
};

}  // namespace keepstep::agent
