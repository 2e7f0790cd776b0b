#include "cli/commands/rendezvous_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/control/coordinator_link.h"
#include "base/clock.h"
#include "base/log.h"
#include "coordinator/coordinator.h"

namespace keepstep::cli {
namespace {

using nlohmann::json;

constexpr uint32_t kTerm = 1;
constexpr uint16_t kPortBase = 20000;
constexpr int kConnectingThreads = 8;
constexpr int kNamedPeers = 4;  // looked up by each rank
constexpr std::chrono::seconds kConnectTimeout{60};

void answer(const json& line) { std::cout << line.dump() << '\n' << std::flush; }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Each node has its own address, so a table with a wrong one is detected.
brain::NodeEndpoint endpoint_of(brain::NodeId node) {
  const auto byte = [node](int shift) { return static_cast<uint8_t>(node >> shift); };
  return {brain::ipv4(10, byte(16), byte(8), byte(0)), kPortBase};
}

struct World {
  uint32_t ranks = 0;
  uint32_t ranks_per_node = 0;
  brain::RankTable::Location locate(brain::Rank rank) const {
    const uint32_t local = rank % ranks_per_node;
    const brain::NodeEndpoint endpoint = endpoint_of(rank / ranks_per_node);
    return {rank / ranks_per_node, local, endpoint.address, static_cast<uint16_t>(endpoint.port_base + local)};
  }
};

// How many of this process's agents have reached which milestone. Thread-safe.
class Progress {
 public:
  explicit Progress(uint32_t agents) : agents_(agents) {}

  // An agent has reached `milestone`. The last one answers.
  void reached(const std::string& milestone, uint32_t generation, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    State& state = states_[{milestone, generation}];
    state.bytes = std::max(state.bytes, bytes);
    if (++state.agents == agents_) {
      json line = {{"event", milestone}, {"ns", monotonic_ns()}};
      if (generation > 0) {
        line["generation"] = generation;
      }
      if (state.bytes > 0) {
        line["bytes"] = state.bytes;
      }
      answer(line);
    }
  }
  void failed(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(failed_, true)) {
      answer({{"event", "failed"}, {"because", why}});
    }
  }

 private:
  struct State {
    uint32_t agents = 0;
    uint64_t bytes = 0;
  };
  const uint32_t agents_;
  std::mutex mutex_;
  std::map<std::pair<std::string, uint32_t>, State> states_;
  bool failed_ = false;
};

// One node of the job: answers the coordinator's orders on behalf of workers that do not exist.
class PretendedNode {
 public:
  PretendedNode(brain::NodeId node, World world, uint64_t seed, Progress* progress)
      : node_(node), world_(world), random_(seed + node), progress_(progress) {}

  Status connect(const std::string& address, const std::shared_ptr<const net::TlsContext>& tls) {
    auto link = agent::CoordinatorLink::connect(
        address, node_, "node-" + std::to_string(node_), tls,
        [this](const brain::Effect& effect) { carry_out(effect); },
        [this](const std::string& why) { progress_->failed(absl::StrFormat("node %d: %s", node_, why)); },
        kConnectTimeout);
    if (!link.ok()) {
      return link.status();
    }
    link_ = *std::move(link);
    return absl::OkStatus();
  }

  void join() { link_->send(brain::NodeJoined{node_, endpoint_of(node_)}); }
  void ask() {
    const std::lock_guard lock(mutex_);
    for (const brain::WorkerId worker : workers_) {
      park(worker);
    }
    asked_ = true;
  }
  void kill_first_rank() {
    const std::lock_guard lock(mutex_);
    link_->send(brain::WorkerDied{members_.front().worker, pid(members_.front().worker), SIGKILL, 0, "pidfd", ""});
  }
  void close() { link_->close(); }

 private:
  static int64_t pid(brain::WorkerId worker) { return 1000 + int64_t{worker}; }

  void park(brain::WorkerId worker) {
    link_->send(brain::WorkerRecoverable{worker});
    link_->send(brain::WorkerParked{worker, pid(worker)});
  }

  void carry_out(const brain::Effect& effect) {
    const std::lock_guard lock(mutex_);
    std::visit([this](const auto& order) { on(order); }, effect);
    received_ = link_->received_bytes();
  }

  void on(const brain::Spawn& order) {
    workers_.push_back(order.worker);
    if (asked_) {
      park(order.worker);
    } else if (workers_.size() == world_.ranks_per_node) {
      progress_->reached("spawned", 0, 0);
    }
  }

  void on(const brain::Prepare& order) {
    if (order.identity > prepared_) {
      prepared_ = order.identity;
      members_ = order.members;
      check(order);
      progress_->reached("tables", order.identity.generation, link_->received_bytes() - received_);
    }
    brain::Ready ready{order.identity, {}};
    for (const brain::Member& member : members_) {
      const bool empty = member.newcomer || order.version == 0;
      ready.members.push_back(
          {member.worker, empty ? brain::StateWord{} : brain::StateWord{brain::StateKind::kClean, order.version}});
    }
    link_->send(ready);
  }

  // Checks that every rank of this node finds itself in the table, and looks up a few peers.
  void check(const brain::Prepare& order) {
    if (order.table.world_size() != world_.ranks || members_.size() != world_.ranks_per_node) {
      return progress_->failed(absl::StrFormat("node %d got a table of %d ranks, %d of them its own", node_,
                                               order.table.world_size(), members_.size()));
    }
    for (const brain::Member& member : members_) {
      std::vector<brain::Rank> named = {member.rank};
      for (int peer = 0; peer < kNamedPeers; ++peer) {
        named.push_back(static_cast<brain::Rank>(random_() % world_.ranks));
      }
      for (const brain::Rank rank : named) {
        if (order.table.locate(rank) != world_.locate(rank)) {
          return progress_->failed(
              absl::StrFormat("node %d got a table with a wrong endpoint of rank %d", node_, rank));
        }
      }
    }
    if (members_.front().rank / world_.ranks_per_node != node_) {
      progress_->failed(absl::StrFormat("node %d was given rank %d of another node", node_, members_.front().rank));
    }
  }

  void on(const brain::Activate& order) {
    if (order.identity != prepared_ || order.identity <= activated_) {
      return;
    }
    activated_ = order.identity;
    version_ = order.version + 1;
    if (node_ == 0) {
      link_->send(brain::Formed{order.identity});
      link_->send(brain::Progress{order.identity, version_});
    }
    progress_->reached("activated", order.identity.generation, 0);
  }

  void on(const brain::Seal& order) {
    if (order.identity != activated_) {
      return;
    }
    brain::Sealed sealed{node_, order.identity, {}};
    for (const brain::Member& member : members_) {
      sealed.words.push_back({member.rank,
                              member.worker,
                              {order.identity, version_ + 1, brain::Vote::kOpen, false},
                              {brain::StateKind::kClean, version_}});
    }
    link_->send(sealed);
  }

  void on(const brain::Decide&) {}
  void on(const brain::Kill& order) {
    link_->send(brain::WorkerDied{order.worker, pid(order.worker), SIGKILL, 0, "pidfd", ""});
  }
  void on(const brain::Pause&) {}
  void on(const brain::ReleaseNode&) {}
  void on(const brain::Release&) {}
  void on(const brain::Journal&) {}
  void on(const brain::EndJob& order) { progress_->failed(absl::StrFormat("the job ended: %s", order.message)); }

  const brain::NodeId node_;
  const World world_;
  std::mt19937_64 random_;
  Progress* const progress_;
  std::unique_ptr<agent::CoordinatorLink> link_;
  std::mutex mutex_;  // orders arrive on the link's thread, commands on the main thread
  std::vector<brain::WorkerId> workers_;
  std::vector<brain::Member> members_;
  brain::Identity prepared_;
  brain::Identity activated_;
  brain::Version version_ = 0;
  bool asked_ = false;
  uint64_t received_ = 0;  // bytes of all messages except the current one
};

StatusOr<std::vector<std::unique_ptr<PretendedNode>>> connect_all(const json& request, const net::SharedKey& key,
                                                                  Progress* progress) {
  const World world{request.at("ranks"), request.at("ranks_per_node")};
  const uint32_t first = request.at("first_node");
  std::vector<std::unique_ptr<PretendedNode>> nodes;
  for (uint32_t i = 0; i < request.at("nodes"); ++i) {
    nodes.push_back(std::make_unique<PretendedNode>(first + i, world, request.at("seed"), progress));
  }
  const std::string address = request.at("address");
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls, net::TlsContext::create(key));
  std::mutex mutex;
  size_t next = 0;
  Status worst;
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnectingThreads; ++i) {
    threads.emplace_back([&] {
      std::unique_lock lock(mutex);
      while (next < nodes.size() && worst.ok()) {
        PretendedNode& node = *nodes[next++];
        lock.unlock();
        const Status status = node.connect(address, tls);
        lock.lock();
        worst.Update(status);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (!worst.ok()) {
    return worst;
  }
  return nodes;
}

Status run_agents(const json& request, const net::SharedKey& key) {
  Progress progress(request.at("nodes"));
  const int64_t from_ns = monotonic_ns();
  auto connected = connect_all(request, key, &progress);
  if (!connected.ok()) {
    return connected.status();
  }
  std::vector<std::unique_ptr<PretendedNode>>& nodes = *connected;
  answer({{"event", "connected"}, {"from_ns", from_ns}, {"ns", monotonic_ns()}});
  for (std::string word; std::cin >> word;) {
    if (word == "join") {
      std::for_each(nodes.begin(), nodes.end(), [](const auto& node) { node->join(); });
    } else if (word == "ask") {
      std::for_each(nodes.begin(), nodes.end(), [](const auto& node) { node->ask(); });
    } else if (uint32_t node = 0; word == "kill" && std::cin >> node) {
      const int64_t killed_ns = monotonic_ns();
      nodes.at(node - request.at("first_node").get<uint32_t>())->kill_first_rank();
      answer({{"event", "killed"}, {"ns", killed_ns}});
    } else {
      return absl::InvalidArgumentError("no such word: " + word);
    }
  }
  answer({{"event", "stopped"}, {"cpu_s", cpu_seconds()}});
  std::fflush(stdout);
  std::_Exit(0);  // closing thousands of streams one by one would prove nothing
}

Status run_coordinator(const json& request, const net::SharedKey& key) {
  auto journal = observe::Journal::open(request.at("journal"), 0);
  if (!journal.ok()) {
    return journal.status();
  }
  coordinator::CoordinatorConfig config{.key = key};
  config.handshake_timeout = kConnectTimeout;  // thousands of handshakes share the processors of one machine
  config.membership.term = kTerm;
  config.membership.world_size = request.at("ranks");
  config.membership.nodes = request.at("nodes");
  config.membership.ladder.replacements_per_step = 1'000'000;
  auto coordinator = coordinator::Coordinator::start(std::move(config), journal->get());
  if (!coordinator.ok()) {
    return coordinator.status();
  }
  answer({{"event", "listening"}, {"address", (*coordinator)->address()}});
  std::string word;
  std::cin >> word;  // until the end of input
  const double cpu_s = cpu_seconds();
  answer({{"event", "stopped"}, {"cpu_s", cpu_s}, {"refused", (*coordinator)->refused()}});
  std::fflush(stdout);
  std::_Exit(0);
}

// Each connection needs a descriptor on both sides.
void allow_many_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

int rendezvous_bench_main() {
  std::string line;
  std::getline(std::cin, line);
  const json request = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!request.is_object() || !request.contains("role") || !request.contains("token")) {
    std::fputs("keepstep: rendezvous-bench is started by `keepstep bench rendezvous`, not by hand\n", stderr);
    return 2;
  }
  init_log("rendezvous");
  allow_many_descriptors();
  const auto token = JobToken::parse(request.at("token").get<std::string>());
  Status status = token.status();
  if (token.ok()) {
    const net::SharedKey key = net::SharedKey::control(*token, "bench");
    status = request.at("role") == "coordinator" ? run_coordinator(request, key) : run_agents(request, key);
  }
  if (!status.ok()) {
    answer({{"event", "failed"}, {"because", std::string(status.message())}});
    return 1;
  }
  return 0;
}

}  // namespace keepstep::cli
