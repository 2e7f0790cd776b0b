// What `keepstep run` was asked to run, checked. Made by cli/options/run_options.h, used by the agent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/job/log_rules.h"
#include "brain/detect/failure_detector.h"
#include "brain/elastic/elastic_policy.h"

namespace keepstep::agent {

// The streams of a worker that an option applies to: bit 1 standard output, bit 2 standard error (torchrun's numbers).
using Streams = int;

// torchrun's --redirects/--tee: one value for all local ranks, or some ranks by number.
struct StreamsByRank {
  Streams all = 0;
  std::map<uint32_t, Streams> by_rank;
  Streams of(uint32_t rank) const {
    const auto it = by_rank.find(rank);
    return it == by_rank.end() ? all : it->second;
  }
};

struct JobSpec {
  uint32_t nproc_per_node = 1;
  uint32_t spares = 0;  // on each node

  // Several nodes: one launcher each. One node needs no endpoint and binds no port.
  uint32_t nnodes = 1;
  uint32_t spare_nodes = 0;  // node ranks from nnodes up: they join and wait
  // Elastic (--nnodes MIN:MAX): the job starts with at least `nnodes`, and this policy decides its size.
  std::optional<brain::ElasticConfig> elastic;
  uint32_t max_nodes = 0;
  uint32_t ranks_per_replica = 1;
  uint32_t node_rank = 0;
  bool any_node_rank = false;  // several nodes: numbers are given in order of arrival
  std::string endpoint_host;   // where node 0 listens and all others connect
  uint16_t endpoint_port = 0;
  std::string local_addr;       // where other nodes reach this one; empty: the address of the route to the endpoint
  double join_timeout_s = 600;  // for all nodes to join
  uint32_t node_limit() const { return elastic ? max_nodes : nnodes; }  // with ranks
  uint32_t world_size() const { return nnodes * nproc_per_node; }       // at the start, unless the job is elastic
  uint32_t rank_limit() const { return node_limit() * nproc_per_node; }
  std::string data_plane = "tls";  // --data-plane, between nodes: tls or plain; node 0's is used
  bool several_nodes() const { return node_limit() + spare_nodes > 1; }

  std::string run_id = "none";  // torchrun's --rdzv-id
  std::string role = "default";
  std::string script;  // a path, a module's name with `module`, or a program with `no_python`
  std::vector<std::string> script_args;
  bool module = false;
  bool no_python = false;
  std::string python;  // the interpreter that runs the zygote and workers

  std::string log_dir;  // empty if there are no files
  StreamsByRank redirects;
  StreamsByRank tee;
  std::optional<std::vector<uint32_t>> local_ranks_filter;

  std::vector<LogRule> log_rules;    // --log-rules, parsed
  bool health_check = true;          // --health-check
  double health_interval_s = 60;     // between the agent's own checks
  double clock_limit_s = 1;          // --clock-limit, between nodes; 0: clocks are not compared
  bool refuse_clocks_apart = false;  // --clocks-apart

  std::string master_addr = "127.0.0.1";  // empty: the address of rank 0's node
  uint16_t master_port = 0;               // 0: any free one
  int max_restarts = 3;
  int node_faults = 3;          // --node-faults
  double fault_window_s = 600;  // --fault-window
  double node_timeout_s = 60;   // for another node to take over a lost one's ranks
  double interrupt_timeout_s = 60;
  brain::HangConfig hang;           // --hang-timeout
  double monitor_interval_s = 0.1;  // accepted as torchrun does; keepstep waits for events

  std::string journal_dir;          // empty: none
  std::vector<std::string> inject;  // as given, e.g. "kill:rank=2,step=20,phase=backward"
  bool allow_inject = false;        // --allow-inject
  uint64_t seed = 0;
  bool check_all_steps = false;    // --check
  std::string digests = "auto";    // --digests: auto, on or off
  uint32_t digest_every = 50;      // --digest-every, in steps; 0: never
  std::string token;               // empty: random (one node), or written to token_file by node 0
  std::string token_file;          // several nodes, no token: where node 0 writes one for the others
  std::string slurm_job;           // the Slurm job we run in; empty if none. In one, SIGTERM is a notice
  bool requeue_on_notice = false;  // --on-notice requeue
  bool preload = true;             // --no-preload: the zygote imports torch only
  bool start_by_exec = false;      // --start-method exec: no zygote
};

}  // namespace keepstep::agent
