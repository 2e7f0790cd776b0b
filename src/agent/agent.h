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
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/control/control_door.h"
#include "agent/control/coordinator_link.h"
#include "agent/control/endpoint.h"
#include "agent/job/elastic_values.h"
#include "agent/job/inject_spec.h"
#include "agent/job/job_spec.h"
#include "agent/loop/event_loop.h"
#include "agent/loop/timer.h"
#include "agent/memory/generation.h"
#include "agent/memory/memory_tier.h"
#include "agent/memory/shard_vaults.h"
#include "agent/memory/vault_maker.h"
#include "agent/store/shared_store.h"
#include "agent/watch/agent_faults.h"
#include "agent/watch/clock_probe.h"
#include "agent/watch/hang_watch.h"
#include "agent/watch/health.h"
#include "agent/watch/log_watch.h"
#include "agent/watch/metrics.h"
#include "agent/watch/stacks.h"
#include "agent/workers/message_parts.h"
#include "agent/workers/output_pump.h"
#include "agent/workers/starter.h"
#include "agent/workers/temp_folder.h"
#include "agent/workers/torchrun_env.h"
#include "agent/workers/worker_process.h"
#include "brain/detect/stragglers.h"
#include "brain/node/node.h"
#include "observe/journal.h"
#include "observe/status_line.h"
#include "rank/link/messages.h"

namespace keepstep::agent {

class DrainProcess;
class RingService;

// The exit code of a job that stopped because of a notice: BSD's EX_TEMPFAIL, "try again later".
inline constexpr int kNoticeExitCode = 75;

// Answers a user's command that came over the network: called on any thread, with the request and what sends its
// answer.
using OnCommand = std::function<void(std::string request, std::function<void(const std::string&)> answer)>;

// What node 0's coordinator knows of an elastic job, for who asks.
struct SizeNews {
  std::vector<brain::NodeId> nodes;  // that attend
  std::string event;                 // of the journal, the last one about the size; empty: none yet
  std::string because;
  double seconds_ago = 0;
};

struct AgentConfig {
  JobSpec spec;
  brain::NodeId node = 0;
  std::string coordinator;  // address
  JobToken token;
  std::string version;                    // keepstep's
  std::string node_name = "localhost";    // for people
  brain::NodeEndpoint endpoint;           // where other nodes reach the ranks of this one
  NodePorts ports;                        // with several nodes: what they reach
  std::unique_ptr<CoordinatorLink> seat;  // keeps `node` for us until we attend; null: it needs no keeping
  std::function<void()> all_came;         // node 0's, once: all nodes are there, the spare ones too
  std::function<SizeNews()> size_news;    // node 0's
  // Node 0's: from now on commands that come to the coordinator's endpoint go to the one given; null: they are refused.
  std::function<void(OnCommand)> take_commands;
};

// How the job ended, as the launcher reports it.
struct JobEnd {
  int exit_code = 0;
  std::string message;
  std::string traceback;
  bool on_notice = false;
};

// The communicator's sizes for this job; the same on agent and workers.
comm::CommConfig comm_config(const JobSpec& spec);
// TCP ports kept for MASTER_PORT behind those of the local ranks: generations take turns.
inline constexpr uint32_t kMasterPorts = 4;
// Shared memory the agent allocates for all workers of this node.
uint64_t shared_memory_bytes(const JobSpec& spec);

// Whether `signal` says that the job has to stop soon. Slurm ends a job with SIGTERM, and sends a signal of the user's
// choice some time before; elsewhere SIGTERM ends a job at once, as it always did.
bool is_notice(const JobSpec& spec, int signal);

class Agent {
 public:
  // `journal`, `pump`, `status` must outlive the agent. The calling process becomes the subreaper of its workers.
  Agent(AgentConfig config, observe::Journal& journal, OutputPump& pump, observe::StatusLine& status);
  ~Agent();

  // Connects, starts everything, and returns when the job is over and no worker is left. `signals` (blocked in every
  // thread) end the job; the second one at once.
  StatusOr<JobEnd> run(const sigset_t& signals);

 private:
  using Workers = std::map<brain::WorkerId, std::shared_ptr<WorkerProcess>>;

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
  WorkerProcess* find(brain::WorkerId id) const;
  // In the newest generation; none: it has none.
  std::optional<brain::Rank> rank_of(const WorkerProcess& process) const;
  std::vector<brain::Rank> ranks_here() const;
  // Its death was noticed. Until it is confirmed it may still run.
  bool is_dead(const WorkerProcess& process) const;

  // agent_workers.cc: what workers say and how they end
  void on_started(brain::WorkerId id, pid_t pid, Fd pidfd, const std::string& how);
  void on_packet(const std::shared_ptr<WorkerProcess>& process);
  void on_message(const std::shared_ptr<WorkerProcess>& process, const worker::Message& message);
  void on_attach(const std::shared_ptr<WorkerProcess>& process, const worker::Message& message);
  void on_program_attached(const WorkerProcess& process);
  void on_programs_attach();
  // Reads what ranks committed and logged since the last time; also of the dead.
  void collect(WorkerProcess& process);
  void collect_all();
  void on_commit(const WorkerProcess& process, const worker::CommitRecord& record);
  void on_vault(const std::shared_ptr<WorkerProcess>& process, const worker::Message& message);
  void on_store(const std::shared_ptr<WorkerProcess>& process, const worker::Message& message, std::vector<Fd> fds);
  void read_last_words(const std::shared_ptr<WorkerProcess>& process);
  void on_death_notice(const std::shared_ptr<WorkerProcess>& process);
  void on_exit(std::shared_ptr<WorkerProcess> process);
  void tell(WorkerProcess& process, worker::MessageType type, brain::Identity identity, nlohmann::json body,
            std::span<const int> fds = {});
  std::vector<std::shared_ptr<WorkerProcess>> living_members() const;
  void keep_losses(const std::vector<Generation::Holder>& holders);
  void refuse(const WorkerProcess& process, const std::string& because);
  void say_recovered();
  void update_status();

  // agent_control.cc: what comes through the control door, and injected faults
  void open_door();
  void keep_door_open();
  void on_request(const nlohmann::json& request, const ControlDoor::Answer& answer);
  void open_endpoint();
  void on_asked(const std::string& request, const std::function<void(const std::string&)>& answer);
  nlohmann::json describe() const;
  RankFacts facts_of(const WorkerProcess& process) const;
  void take_stacks_of(const std::vector<std::shared_ptr<WorkerProcess>>& processes, const StackLimits& limits,
                      std::function<void(StatusOr<std::vector<RankStacks>>)> done);
  void answer_stacks(bool native, const ControlDoor::Answer& answer);
  nlohmann::json waiting_faults() const;
  StatusOr<std::string> inject(const std::string& text);
  StatusOr<std::string> signal_rank(const InjectSpec& spec);
  void write_injected(const InjectSpec& spec, const WorkerProcess* process, int64_t at_ns, const std::string& detail);
  void on_saved(const worker::Message& message);
  void note_place(const std::string& where);
  void on_note(const WorkerProcess& process, const worker::Message& message);
  void on_injected(const std::shared_ptr<WorkerProcess>& process, const worker::Message& message);
  void carry_out(const InjectSpec& spec, const std::shared_ptr<WorkerProcess>& process);

  // agent_notice.cc: word from outside that the job has to stop soon
  bool on_notice(int signal);
  void take_notice(const std::string& because);
  void tell_notice(WorkerProcess& process);
  void end_on_notice();

  // agent_elastic.cc: the world changes
  uint32_t world() const;
  void part(const brain::Part& effect);
  void let_leavers_out();
  bool leave_on(int signal);
  void leave_in_time();
  void end_unparted(const char* what);
  StatusOr<std::string> scale(const nlohmann::json& request);
  StatusOr<std::string> scale_to(std::optional<uint32_t> replicas);
  StatusOr<std::string> change_policy(const PolicyValues& values);
  StatusOr<nlohmann::json> describe_size() const;
  Status decides_on_size() const;
  uint32_t replicas() const;
  void tell_grace(brain::NodeId to);
  void on_grace(const nlohmann::json& body);

  // agent_memory.cc: what the agents of all nodes hold of the job's state
  struct MemoryQuestion {
    bool of_all = false;  // nodes; else of one
    ControlDoor::Answer answer;
    std::set<brain::NodeId> awaited;
    std::map<brain::NodeId, nlohmann::json> answers;
    int64_t deadline_ns = 0;
    std::set<brain::NodeId> silent;  // that are not waited for any longer
  };
  void answer_memory(const nlohmann::json& request, const ControlDoor::Answer& answer);
  std::vector<brain::NodeId> attending_nodes() const;
  void on_memory_message(brain::NodeId from, nlohmann::json body);
  void on_memory_answer(brain::NodeId from, uint64_t id, nlohmann::json body);
  void watch_memory_questions();
  void conclude_memory(uint64_t id);
  nlohmann::json memory_answer(const MemoryQuestion& question) const;

  // agent_health.cc: what is wrong though nobody died
  void apply_log_rules();
  void watch_health();
  void on_health(const HealthReading& reading);
  void apply_health();
  void say_health(std::vector<HealthFinding> findings);
  void on_unfit(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& body);

  // agent_clock.cc: the wall clocks of several nodes
  bool compares_clocks() const;
  bool asks_for_clock_first();  // true: it does, and the node introduces itself with the last answer
  void ask_clock();
  nlohmann::json clock_report() const;  // null: not known
  void watch_clock();
  void on_clock_message(brain::NodeId from, const nlohmann::json& body);
  bool on_clock(brain::NodeId from, const std::string& host, const nlohmann::json& report, bool comes);

  // agent_stragglers.cc: ranks that make less progress than others
  void note_pace(brain::Rank rank, const worker::CommitRecord& record);
  void watch_pace();
  Status on_pace_report(brain::NodeId from, const nlohmann::json& report);
  void on_paces(brain::Identity identity, const std::vector<brain::RankPace>& paces);
  nlohmann::json describe_stragglers() const;
  std::string note() const;

  // agent_hangs.cc: ranks that make no progress
  void watch_for_hangs();
  void on_hang(const brain::Suspicion& suspicion, brain::Identity identity);
  void on_left_early(const brain::EarlyLeaver& leaver, brain::Identity identity);
  void write_stacks(const std::string& file, const std::vector<RankStacks>& stacks);

  // agent_nodes.cc: what agents of several nodes say to one another
  StatusOr<std::unique_ptr<CoordinatorLink>> attend();
  void introduce();
  void join();
  void on_refused(const std::string& because);
  void refuse_or_end(brain::NodeId node, const std::string& because);
  void route(brain::NodeId to, char subject, const std::string& body);
  void on_routed(brain::NodeId from, const std::string& message);
  void carry_out(const SharedStore::Outcome& outcome);
  void say_that_all_came();
  void on_facts(brain::NodeId from, const std::string& name, const nlohmann::json& facts);
  void on_fingerprint(brain::NodeId from, const nlohmann::json& theirs);
  void tell_that_programs_attach(brain::NodeId to);
  void await_nodes();
  void await_begin();

  AgentConfig config_;
  observe::Journal& journal_;
  OutputPump& pump_;
  observe::StatusLine& status_;
  comm::CommConfig comm_config_;
  worker::WorkerLayout layout_;
  std::shared_ptr<EventLoop> loop_;  // shared with the threads that watch lives: they may outlive us
  std::unique_ptr<CoordinatorLink> link_;
  std::unique_ptr<Starter> starter_;
  SharedStore store_;
  ShardVaults vaults_;
  std::unique_ptr<VaultMaker> vault_maker_;
  std::unique_ptr<MemoryTier> memory_tier_;
  std::map<uint64_t, MemoryQuestion> memory_questions_;  // node 0's, to be answered
  uint64_t memory_asked_ = 0;
  PartJoiner parts_;
  Metrics metrics_;
  HangWatch hang_watch_;
  int64_t waiting_told_ns_ = 0;  // to the agents of other nodes, last
  brain::StepWindow step_window_;
  brain::StragglerDetector stragglers_;  // node 0
  std::shared_ptr<LogWatch> log_watch_;  // null without rules; shared with the pump's thread
  Fd signal_fd_;

  TempFolder temp_;
  brain::NodeBrain brain_;
  Workers workers_;                                                     // whose memory is here
  std::map<brain::Identity, std::unique_ptr<Generation>> generations_;  // the newest, and the one before
  std::string master_addr_;
  uint16_t master_port_ = 0;
  uint32_t started_ranks_ = 0;  // workers that the job started with here
  bool first_commit_told_ = true;
  uint32_t recoveries_ = 0;
  std::string note_ = "starting";
  std::set<std::string> saves_to_;             // places for checkpoints that ranks here spoke of
  std::map<std::string, int64_t> late_saves_;  // places for checkpoints that are behind, and since which step
  std::string fingerprint_;
  bool preload_sent_ = false;
  bool programs_attach_ = false;  // --no-python, and one of the job's programs did: they can wait for a rank
  std::map<std::string, InjectSpec> faults_;  // to inject, by key: those of --inject, and what came since
  std::set<std::string> injected_;            // keys of those that will not happen again
  uint32_t live_faults_ = 0;
  FullDisk full_disk_;
  std::vector<std::unique_ptr<Timer>> timers_;  // what ends a fault
  std::string job_;                             // its name for commands
  std::unique_ptr<ControlDoor> door_;
  int64_t door_checked_ns_ = 0;
  std::string rings_socket_;             // where ranks ask for rings; empty: nowhere
  std::unique_ptr<RingService> rings_;   // null then
  std::string drain_socket_;             // where ranks hand over what they save; empty: nowhere
  std::unique_ptr<DrainProcess> drain_;  // null then
  std::vector<brain::NodeId> with_ranks_;
  std::set<pid_t> groups_;  // process groups of dead workers that may still have members
  std::optional<JobEnd> end_;
  int64_t kill_at_ns_ = 0;
  int signals_ = 0;
  std::string notice_;              // why the ranks are to stop after their step; empty: no reason
  bool stopped_on_notice_ = false;  // ranks of this node did
  int64_t refused_ = 0;
  bool joined_job_ = false;    // node 0 found no difference, and the coordinator knows of us
  bool refused_by_0_ = false;  // it found one, and the job goes on without us
  int64_t introduced_at_ns_ = 0;
  ClockProbe clock_;
  int64_t clock_asked_ns_ = 0;
  NodeFitness fitness_;
  std::unique_ptr<HealthWatch> health_watch_;  // null: not wanted
  std::optional<HealthReading> health_;        // the last one
  std::vector<HealthFinding> unhealthy_;       // as said last
  bool gives_up_ = false;                      // this node is to have no ranks any more
  // Of an elastic job.
  int64_t leave_by_ns_ = 0;     // this node was told to leave
  bool leave_at_once_ = false;  // by SIGTERM, so the next one does not wait
  brain::Time grace_{};         // what it gets then; node 0 says when that changes
  // Node 0: what the coordinator's policy was told, so that whoever asks for something impossible hears so.
  std::optional<brain::ElasticPolicy> policy_;

  // Of several nodes, for node 0.
  std::map<brain::NodeId, std::string> joined_;  // by name
  std::map<brain::NodeId, nlohmann::json> fingerprints_;
  std::set<brain::NodeId> clocks_apart_;  // as said last
  int64_t started_at_ns_ = 0;
  int64_t complete_since_ns_ = 0;  // all had come, but no worker was asked for; 0: not so
  bool said_waiting_ = false;
};

}  // namespace keepstep::agent
