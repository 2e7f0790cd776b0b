// What an agent is started with, and how its job ended. Value types.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/control/coordinator_link.h"
#include "agent/control/endpoint.h"
#include "agent/job/job_spec.h"
#include "base/token.h"
#include "brain/types.h"

namespace keepstep::agent {

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

}  // namespace keepstep::agent
