// Interrupts a 64 MiB all_reduce at random instants, with no fault, a stopped peer or a killed one. Every living rank
// must return; the test prints how long that takes. KEEPSTEP_INTERRUPTIONS sets the number of repetitions.
//
// Rank processes serve many repetitions (a new generation each); one that was killed is forked again.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/clock.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

constexpr Rank kRanks = 4;
constexpr size_t kBytes = 64 << 20;
constexpr int64_t kHangNs = 60'000'000'000;

// What parent and ranks share beside the world's own memory. `round` is 0 before the first repetition.
struct Board {
  std::atomic<uint32_t> round;            // which repetition may begin
  std::atomic<uint32_t> entered[kRanks];  // the repetition each rank is in
  std::atomic<uint32_t> left[kRanks];     // the repetition each rank has returned from
  std::atomic<int64_t> left_ns[kRanks];
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> wrong;  // how many ranks had a wrong outcome or wrong data
};

void ring(Board& board) {
  board.bell.fetch_add(1);
  futex_wake_all(board.bell);
}

template <class Done>
bool wait_for(Board& board, Done done) {
  const int64_t until = monotonic_ns() + kHangNs;
  while (true) {
    const uint32_t seen = board.bell.load();
    if (done()) {
      return true;
    }
    if (monotonic_ns() > until) {
      return false;
    }
    futex_wait(board.bell, seen, 50'000'000);
  }
}

// Runs one repetition after another until it is killed.
[[noreturn]] void serve(TestWorld& world, Board& board, Rank self) {
  std::vector<float> data(kBytes / sizeof(float), 1.0F);
  for (uint32_t done = board.left[self].load();;) {
    wait_for(board, [&] { return board.round.load() > done; });
    const uint32_t round = board.round.load();
    if (round == done) {
      continue;
    }
    {
      const auto comm = world.communicator(self);
      board.entered[self].store(round);
      ring(board);
      Outcome outcome = Outcome::kDone;
      while (outcome == Outcome::kDone) {
        const OpId op = comm->all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax);
        outcome = finish(*comm, op).outcome;
      }
      board.left_ns[self].store(monotonic_ns());
      if (outcome != Outcome::kInterrupted || data[self] != 1.0F || data.back() != 1.0F) {
        board.wrong.fetch_add(1);
      }
    }
    done = round;
    board.left[self].store(round);
    ring(board);
  }
}

TEST(InterruptionRandom, every_rank_returns_whatever_its_peers_suffer) {
  const char* wanted = std::getenv("KEEPSTEP_INTERRUPTIONS");
  const uint32_t rounds = wanted == nullptr ? 60 : static_cast<uint32_t>(std::atoi(wanted));
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  TestWorld world(kRanks, {.max_world = kRanks});
  auto* board = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board{};
  std::vector<pid_t> pids(kRanks);
  const auto start = [&](Rank rank) {
    std::fflush(nullptr);  // or each child prints the buffered output again
    pids[rank] = fork();
    if (pids[rank] == 0) {
      serve(world, *board, rank);
    }
  };
  for (Rank rank = 0; rank < kRanks; ++rank) {
    start(rank);
  }
  std::vector<int64_t> worst_ns;
  bool hung = false;
  for (uint32_t round = 1; round <= rounds && !hung; ++round) {
    world.words().interrupted.store(0);
    std::memset(world.generation(), 0, generation_bytes(world.config()));
    board->round.store(round);
    ring(*board);
    hung = !wait_for(*board, [&] {
      return std::all_of(board->entered, board->entered + kRanks, [&](auto& at) { return at.load() == round; });
    });
    const Rank victim = random() % kRanks;
    enum { kNothing, kStopped, kKilled } fault = static_cast<decltype(fault)>(random() % 3);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));  // the instant is the random input
    if (fault != kNothing) {
      kill(pids[victim], fault == kStopped ? SIGSTOP : SIGKILL);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2'000));
    }
    const int64_t begun = monotonic_ns();
    world.interrupt();
    const auto returned = [&](Rank rank) {
      return (fault != kNothing && rank == victim) || board->left[rank].load() == round;
    };
    hung = hung || !wait_for(*board, [&] { return returned(0) && returned(1) && returned(2) && returned(3); });
    int64_t worst = 0;
    for (Rank rank = 0; rank < kRanks && !hung; ++rank) {
      if (fault == kNothing || rank != victim) {
        worst = std::max(worst, board->left_ns[rank].load() - begun);
      }
    }
    worst_ns.push_back(worst);
    if (fault == kStopped) {
      kill(pids[victim], SIGCONT);
      hung = hung || !wait_for(*board, [&] { return board->left[victim].load() == round; });
    } else if (fault == kKilled) {
      TestWorld::status_of(pids[victim]);
      board->left[victim].store(round);
      start(victim);
    }
    EXPECT_FALSE(hung) << "repetition " << round << ", fault " << fault << " of rank " << victim;
  }
  for (const pid_t pid : pids) {
    kill(pid, SIGKILL);
    TestWorld::status_of(pid);
  }
  EXPECT_EQ(board->wrong.load(), 0U);
  std::sort(worst_ns.begin(), worst_ns.end());
  std::printf("%zu interruptions, to the last rank's return: median %.3f ms, 99%% %.3f ms, worst %.3f ms\n",
              worst_ns.size(), worst_ns[worst_ns.size() / 2] * 1e-6, worst_ns[worst_ns.size() * 99 / 100] * 1e-6,
              worst_ns.back() * 1e-6);
  munmap(board, 4096);
}

}  // namespace
}  // namespace keepstep::comm
