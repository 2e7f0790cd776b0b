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

// Answers a user's command from the network. Called on any thread, with the request and a function that sends the
// answer.
using OnCommand = std::function<void(std::string request, std::function<void(const std::string&)> answer)>;

// What node 0's coordinator knows of an elastic job, to answer questions.
struct SizeNews {
  std::vector<brain::NodeId> nodes;  // connected ones
  std::string event;                 // the journal's last event about the size; empty if none yet
  std::string because;
  double seconds_ago = 0;
};

struct AgentConfig {
  JobSpec spec;
  brain::NodeId node = 0;
  std::string coordinator;  // address
  JobToken token;
  std::string version;                    // keepstep's
  std::string node_name = "localhost";    // for display
  brain::NodeEndpoint endpoint;           // where other nodes reach the ranks of this one
  NodePorts ports;                        // with several nodes: the ports that they reach
  std::unique_ptr<CoordinatorLink> seat;  // reserves `node` until we connect; null if not needed
  std::function<void()> all_came;         // node 0: called once, when all nodes (spare ones too) are there
  std::function<SizeNews()> size_news;    // node 0
  // Node 0: sets the handler of commands that arrive at the coordinator's endpoint. With null they are refused.
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
