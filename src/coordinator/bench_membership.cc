// keepstep_membership_bench: the cost of the membership brain at a given world size. Started by
// `keepstep bench membership`.
//
//   keepstep_membership_bench RANKS RANKS_PER_NODE ROUNDS
//
// It runs the production brain in a job simulated by this program: all nodes join, all workers park and answer, and the
// job runs. A tick is what the brain then does ten times a second. A fault is the death of a rank when a spare exists:
// everything the brain does from that news until the next generation has formed, with the answers of all nodes and
// ranks. Bytes are those of all messages that one node receives for the fault, as the coordinator encodes them; the
// node is the one that lost the rank.
//
// Prints one JSON object: for each of ROUNDS the microseconds of a tick and of a fault, and the bytes.

#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bench.h"
#include "brain/membership/membership.h"
#include "coordinator/broadcast.h"

namespace keepstep::coordinator {
namespace {

constexpr int kTicks = 1000;

class PlayedJob {
 public:
  PlayedJob(uint32_t ranks, uint32_t ranks_per_node) : nodes_(ranks / ranks_per_node), brain_(config(ranks, nodes_)) {
    for (brain::NodeId node = 0; node < nodes_; ++node) {
      feed(brain::NodeJoined{node,
                             {brain::ipv4(10, static_cast<uint8_t>(node >> 16), static_cast<uint8_t>(node >> 8),
                                          static_cast<uint8_t>(node)),
                              20000}});
    }
    play();
    KEEPSTEP_CHECK(brain_.identity().generation == 1, "the played job did not begin");
    commit();
  }

  double tick_us() {
    const int64_t began = monotonic_ns();
    for (int i = 0; i < kTicks; ++i) {
      now_ += std::chrono::milliseconds(100);
      KEEPSTEP_CHECK(brain_.step(brain::Tick{}, now_).empty(), "a tick of a running job has effects");
    }
    return static_cast<double>(monotonic_ns() - began) * 1e-3 / kTicks;
  }

  struct Fault {
    double us = 0;
    size_t bytes = 0;
  };
  Fault fault() {
    const brain::Member dead = members_.at(members_.size() / 2);
    watched_ = dead.node;
    brain_ns_ = 0;
    bytes_ = 0;
    const uint32_t before = brain_.identity().generation;
    feed(brain::WorkerDied{dead.worker, 1, 9, 0, "pidfd", "", ""});
    play();
    KEEPSTEP_CHECK(brain_.identity().generation == before + 1, "the played job did not recover");
    const Fault cost{static_cast<double>(brain_ns_) * 1e-3, bytes_};
    commit();
    return cost;
  }

 private:
  static brain::MembershipConfig config(uint32_t ranks, uint32_t nodes) {
    brain::MembershipConfig config;
    config.nodes = nodes;
    config.world_size = ranks;
    config.spares = 1;
    config.start_failures = 1 << 30;
    config.ladder.faults_per_node = 1 << 30;
    return config;
  }

  void feed(brain::Event event) { events_.push_back(std::move(event)); }

  // Runs until no event is left.
  void play() {
    while (!events_.empty()) {
      const brain::Event event = std::move(events_.front());
      events_.pop_front();
      now_ += std::chrono::microseconds(1);
      const int64_t began = monotonic_ns();
      const brain::Effects effects = brain_.step(event, now_);
      brain_ns_ += monotonic_ns() - began;
      for (const brain::Effect& effect : effects) {
        weigh(effect);
        std::visit([this](const auto& each) { answer(each); }, effect);
      }
    }
  }

  void commit() {
    feed(brain::Progress{brain_.identity(), ++version_, std::nullopt});
    play();
  }

  void weigh(const brain::Effect& effect) {
    if (std::holds_alternative<brain::Journal>(effect)) {
      return;
    }
    const auto* const spawn = std::get_if<brain::Spawn>(&effect);
    const auto* const kill = std::get_if<brain::Kill>(&effect);
    if ((spawn != nullptr && spawn->node != watched_) || (kill != nullptr && kill->node != watched_)) {
      return;
    }
    Broadcast broadcast(effect, brain_.identity(), tables_);
    bytes_ += broadcast.envelope_for(watched_).size() + broadcast.payload_for(watched_)->size();
    if (const auto* const prepare = std::get_if<brain::Prepare>(&effect)) {
      tables_.held(watched_, prepare->identity.generation);
    }
  }

  // The answers of nodes and workers.
  void answer(const brain::Spawn& spawn) {
    feed(brain::WorkerRecoverable{spawn.worker});
    feed(brain::WorkerParked{spawn.worker, 1});
  }
  void answer(const brain::Prepare& prepare) {
    members_ = prepare.members;
    std::vector<brain::Ready> answers(nodes_, {prepare.identity, {}});
    for (const brain::Member& member : prepare.members) {
      const bool clean = !member.newcomer && prepare.version > 0;
      answers[member.node].members.push_back(
          {member.worker, clean ? brain::StateWord{brain::StateKind::kClean, prepare.version} : brain::StateWord{}});
    }
    for (brain::Ready& each : answers) {
      feed(std::move(each));
    }
  }
  void answer(const brain::Activate& activate) { feed(brain::Formed{activate.identity}); }
  void answer(const brain::Seal& seal) {
    std::vector<brain::Sealed> answers(nodes_);
    for (brain::NodeId node = 0; node < nodes_; ++node) {
      answers[node].node = node;
      answers[node].identity = seal.identity;
    }
    for (const brain::Member& member : members_) {
      const brain::StepWord word{seal.identity, version_ + 1, brain::Vote::kOpen, false};
      answers[member.node].words.push_back(
          {member.rank, member.worker, word, {brain::StateKind::kClean, version_}, std::nullopt});
    }
    for (brain::Sealed& each : answers) {
      feed(std::move(each));
    }
  }
  template <typename Other>
  void answer(const Other&) {}

  const uint32_t nodes_;
  brain::Membership brain_;
  std::deque<brain::Event> events_;
  std::vector<brain::Member> members_;
  brain::Version version_ = 0;
  brain::Time now_{};
  int64_t brain_ns_ = 0;
  TableHoldings tables_;
  brain::NodeId watched_ = 0;
  size_t bytes_ = 0;
};

}  // namespace
}  // namespace keepstep::coordinator

// NOLINTNEXTLINE(bugprone-exception-escape): what a benchmark throws ends it
int main(int count, char** words) {
  using keepstep::coordinator::PlayedJob;
  if (count != 4) {
    std::fprintf(stderr, "usage: keepstep_membership_bench RANKS RANKS_PER_NODE ROUNDS\n");
    return 2;
  }
  const auto ranks = static_cast<uint32_t>(keepstep::number_of(words[1]));
  const auto ranks_per_node = static_cast<uint32_t>(keepstep::number_of(words[2]));
  if (ranks_per_node == 0 || ranks < ranks_per_node || ranks % ranks_per_node != 0) {
    std::fprintf(stderr, "keepstep_membership_bench: %s ranks do not fill nodes of %s\n", words[1], words[2]);
    return 2;
  }
  PlayedJob job(ranks, ranks_per_node);
  nlohmann::ordered_json result;
  for (uint64_t round = keepstep::number_of(words[3]); round > 0; --round) {
    result["tick_us"].push_back(job.tick_us());
    const auto fault = job.fault();
    result["fault_us"].push_back(fault.us);
    result["bytes_per_node"] = fault.bytes;
  }
  std::puts(result.dump().c_str());
  return 0;
}
