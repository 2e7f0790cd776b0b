// What the membership brain remembers does not grow with the number of faults in a long job.

#include <gtest/gtest.h>

#include <algorithm>

#include "brain/membership/membership.h"
#include "brain/node/node.h"

namespace keepstep::brain {
namespace {

// One node whose workers do what they are told at once.
class Node {
 public:
  explicit Node(const MembershipConfig& config) : brain_(config) { tell(NodeJoined{0, {ipv4(10, 0, 0, 1), 20000}}); }

  void die(WorkerId worker) { happens(WorkerDied{worker, 100 + int64_t{worker}, 9, 0, "pidfd", "", ""}); }
  void step() {
    ++step_;
    tell(Progress{brain_.identity(), step_});
  }
  const std::vector<Member>& members() const { return prepared_.members; }
  WorkerId newest() const { return newest_; }
  const Membership& brain() const { return brain_; }
  size_t in_memory() const { return in_memory_; }  // workers

 private:
  void tell(const Event& event) {
    now_ += std::chrono::milliseconds(1);
    for (const Effect& effect : brain_.step(event, now_)) {
      if (const auto* prepare = std::get_if<Prepare>(&effect)) {
        prepared_ = *prepare;
      }
      std::visit(
          [this](const auto& order) {
            if constexpr (std::is_constructible_v<NodeEvent, decltype(order)>) {
              happens(order);
            }
          },
          effect);
    }
  }
  void happens(const NodeEvent& event) {
    for (const NodeEffect& effect : node_.step(event, now_)) {
      std::visit([this](const auto& what) { carry_out(what); }, effect);
    }
  }
  void carry_out(const Tell& effect) { tell(effect.event); }
  void carry_out(const StartWorker& effect) {
    newest_ = effect.spawn.worker;
    ++in_memory_;
    tell(WorkerRecoverable{newest_});
    tell(WorkerParked{effect.spawn.worker, 100 + int64_t{effect.spawn.worker}});
  }
  void carry_out(const KillProcess& effect) { die(effect.worker); }
  void carry_out(const FreeMemory&) { --in_memory_; }
  void carry_out(const SealWords& effect) {
    Sealed answer{0, effect.identity, {}};
    for (const Holder& holder : effect.holders) {
      answer.words.push_back({holder.rank, holder.worker, StepWord{effect.identity, step_ + 1, Vote::kOpen, true},
                              StateWord{StateKind::kClean, step_}});
    }
    tell(answer);
  }
  void carry_out(const Assign& effect) {
    happens(MemberReady{node_.identity(),
                        {effect.member.worker,
                         effect.member.newcomer ? StateWord{} : StateWord{StateKind::kClean, prepared_.version}}});
  }
  void carry_out(const GoOn& effect) { happens(Formed{effect.activate.identity}); }
  template <typename Other>
  void carry_out(const Other& /*effect*/) {}

  Membership brain_;
  NodeBrain node_{0};
  Prepare prepared_;
  WorkerId newest_ = 0;
  size_t in_memory_ = 0;
  Step step_ = 0;
  Time now_{};
};

MembershipConfig config_of(uint32_t ranks, uint32_t spares) {
  MembershipConfig config;
  config.world_size = ranks;
  config.spares = spares;
  config.start_failures = 100'000;
  config.ladder = LadderConfig{100'000, 100'000, 100'000, 100'000, 100'000};
  return config;
}

TEST(MembershipMemory, the_dead_are_forgotten_once_a_generation_formed_without_them) {
  Node node(config_of(4, 1));
  for (int fault = 0; fault < 1000; ++fault) {
    node.step();
    node.die(node.members()[static_cast<size_t>(fault) % 4].worker);
    ASSERT_EQ(node.members().size(), 4u);
    ASSERT_LE(node.brain().known_workers(), 10u) << "after " << fault + 1 << " deaths";
    ASSERT_LE(node.in_memory(), 10u) << "after " << fault + 1 << " deaths";
  }
  EXPECT_GT(node.newest(), 1000u);
}

TEST(MembershipMemory, spares_that_die_while_training_goes_on_are_forgotten_too) {
  Node node(config_of(2, 1));
  node.step();
  for (int fault = 0; fault < 1000; ++fault) {
    node.die(node.newest());
    node.step();
    ASSERT_LE(node.brain().known_workers(), 6u) << "after " << fault + 1 << " deaths";
    ASSERT_LE(node.in_memory(), 6u) << "after " << fault + 1 << " deaths";
  }
  EXPECT_GT(node.newest(), 1000u);
}

}  // namespace
}  // namespace keepstep::brain
