// What the membership brain remembers does not grow with the faults of a long job.

#include <gtest/gtest.h>

#include <algorithm>

#include "brain/membership.h"

namespace keepstep::brain {
namespace {

// One node whose workers do what they are told, at once.
class Node {
 public:
  explicit Node(const MembershipConfig& config) : brain_(config) { tell(NodeJoined{0, {ipv4(10, 0, 0, 1), 20000}}); }

  void die(WorkerId worker) { tell(WorkerDied{worker, 100 + int64_t{worker}, 9, 0, "pidfd", ""}); }
  void step() {
    ++step_;
    tell(Progress{brain_.identity(), step_});
  }
  const std::vector<Member>& members() const { return prepared_.members; }
  WorkerId newest() const { return newest_; }
  const Membership& brain() const { return brain_; }

 private:
  void tell(const Event& event) {
    now_ += std::chrono::milliseconds(1);
    for (const Effect& effect : brain_.step(event, now_)) {
      std::visit([this](const auto& what) { on(what); }, effect);
    }
  }
  void on(const Spawn& effect) {
    newest_ = effect.worker;
    tell(WorkerRecoverable{effect.worker});
    tell(WorkerParked{effect.worker, 100 + int64_t{effect.worker}});
  }
  void on(const Kill& effect) { die(effect.worker); }
  void on(const Seal& effect) {
    Sealed answer{0, effect.identity, {}};
    for (const Member& member : members()) {
      answer.words.push_back({member.rank, member.worker, StepWord{effect.identity, step_ + 1, Vote::kOpen, true},
                              StateWord{StateKind::kClean, step_}});
    }
    tell(answer);
  }
  void on(const Prepare& effect) {
    prepared_ = effect;
    for (const Member& member : effect.members) {
      tell(Ready{member.worker, effect.identity,
                 member.newcomer ? StateWord{} : StateWord{StateKind::kClean, effect.version}});
    }
  }
  void on(const Activate& effect) { tell(Formed{effect.identity}); }
  template <typename Other>
  void on(const Other& /*effect*/) {}

  Membership brain_;
  Prepare prepared_;
  WorkerId newest_ = 0;
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
  }
  EXPECT_GT(node.newest(), 1000u);
}

}  // namespace
}  // namespace keepstep::brain
