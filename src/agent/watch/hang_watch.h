// Checks the ranks of a generation a few times a second and finds those that hang, and those that left while others
// wait for them (docs/design/hangs.md).
//
// The eyes of brain/detect/failure_detector.h: it reads progress words from the pages of this node's workers, the state
// of a process that does not move from /proc, and the reports of other nodes' agents. An agent whose ranks all wait
// reports that to the others (`report`): the rank they wait for is on another node, and the agent there can see that
// process and judges.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "agent/workers/worker_process.h"
#include "base/status.h"
#include "brain/detect/early_leavers.h"
#include "brain/detect/failure_detector.h"
#include "messages/agent_messages.h"

namespace keepstep::agent {

class HangWatch {
 public:
  explicit HangWatch(brain::HangConfig config) : config_(config), detector_(config) {}

  // The generation as this agent knows it.
  struct View {
    brain::Identity identity;
    uint32_t world = 0;                                                 // ranks of all nodes
    brain::Version version = 0;                                         // at its start
    bool trains = false;                                                // activated and not sealed
    std::vector<std::pair<brain::Rank, const WorkerProcess*>> members;  // living ones of this node, by rank
  };
  std::vector<brain::Suspicion> look(const View& view, int64_t now_ns);

  // Found by the last look().
  const std::vector<brain::EarlyLeaver>& left() const { return left_; }

  // After look(): the report to send to the other nodes' agents now, if any.
  std::optional<messages::WaitingRanks> report() const;
  // Takes the report of another node's agent. INVALID_ARGUMENT if no agent sends such a report.
  Status on_report(brain::NodeId from, messages::WaitingRanks report, int64_t now_ns);

 private:
  struct Process {
    uint64_t on_cpu_ns = 0;
    uint64_t waited_for_cpu_ns = 0;
    int64_t looked_ns = 0;  // 0: not yet
    brain::Time starved{};
  };
  struct Report {
    brain::Identity identity;
    int64_t received_ns = 0;
    std::vector<brain::RankProgress> ranks;
  };
  brain::RankProgress progress_of(brain::Rank rank, const WorkerProcess& process, const View& view, int64_t now_ns);
  void look_at_process(const WorkerProcess& process, int64_t now_ns, brain::RankProgress& progress);

  const brain::HangConfig config_;
  brain::FailureDetector detector_;
  brain::EarlyLeavers early_leavers_;
  std::vector<brain::EarlyLeaver> left_;
  brain::ProgressSample sample_;  // the newest
  std::map<brain::WorkerId, Process> processes_;
  std::map<brain::NodeId, Report> reports_;
};

// How much of `passed_ns` a process wanted to run but could not, because it waited for a CPU or a disk. A process that
// loops on a busy machine gets a share of the CPU, and only that share counts against it. `state`: its letter; the
// times are those of its main thread.
brain::Time starved_time(char state, int64_t passed_ns, int64_t on_cpu_ns, int64_t queued_ns);

// The state letter of a process ("T": stopped), from the text of /proc/PID/stat; '?' if there is none.
char process_state(const std::string& stat);

}  // namespace keepstep::agent
