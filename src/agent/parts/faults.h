// Injected faults, given at the start of the job or later. Workers carry them out; the agent does its own part of them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/job/inject_spec.h"
#include "agent/loop/timer.h"
#include "agent/parts/core.h"
#include "agent/watch/agent_faults.h"

namespace keepstep::agent {

class Faults {
 public:
  explicit Faults(AgentCore& core);

  std::vector<messages::Fault> waiting() const;  // for a worker that starts
  // Carries out `keepstep inject`; returns in words what is done.
  StatusOr<std::string> inject(const std::string& text);
  // A worker is about to carry out a fault. False if nobody asked for it.
  bool on_injected(const std::shared_ptr<WorkerProcess>& process, const messages::Injected& injected);
  // At the good end of a job: names the faults of this node's ranks that never happened. A test that counts on one
  // would have tested nothing.
  void tell_missed();

 private:
  StatusOr<std::string> signal_rank(const InjectSpec& spec);
  void write(const InjectSpec& spec, const WorkerProcess* process, int64_t at_ns, const std::string& detail);
  void carry_out(const InjectSpec& spec, const std::shared_ptr<WorkerProcess>& process);

  AgentCore& core_;
  std::map<std::string, InjectSpec> faults_;  // by key
  std::set<std::string> happened_;            // keys of those that happened at least once
  std::set<std::string> injected_;            // keys of those that will not happen again
  uint32_t live_ = 0;
  FullDisk full_disk_;
  std::vector<std::unique_ptr<Timer>> timers_;  // each ends a fault
};

}  // namespace keepstep::agent
