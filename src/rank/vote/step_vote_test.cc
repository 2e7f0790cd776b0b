// The vote with real threads on real pages: no rank acts on a step that was sealed first, and none misses a decision.
#include "rank/vote/step_vote.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/futex.h"

namespace keepstep::rank {
namespace {

using brain::Identity;
using brain::Step;
using brain::StepWord;
using brain::Vote;

constexpr Identity kIdentity{1, 1};

// Pages as the agent would allocate them: zeroed, aligned.
struct Pages {
  explicit Pages(uint32_t world) : workers(world) {
    generation.world = world;
    std::vector<const WorkerPage*> members;
    for (const WorkerPage& worker : workers) {
      members.push_back(&worker);
    }
    for (uint32_t rank = 0; rank < world; ++rank) {
      votes.push_back(std::make_unique<StepVote>(workers[rank], generation, kIdentity, nullptr, members,
                                                 [this](Step step) { differs.store(step); }));
      votes.back()->open(0);
    }
  }
  StepWord word(uint32_t rank) { return brain::unpack_step_word(workers[rank].word.load()); }
  void seal_all() {
    generation.sealing.store(1);
    for (WorkerPage& worker : workers) {
      worker.word.fetch_or(brain::kSealedBit);
    }
    generation.interrupted.store(1);
    ring(generation);
  }

  std::vector<WorkerPage> workers;
  GenerationPage generation{};
  std::atomic<Step> differs = 0;  // the step for which different votes were reported
  std::vector<std::unique_ptr<StepVote>> votes;
};

void in_threads(uint32_t world, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back(body, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(StepVoteTest, all_ranks_decide_a_thousand_steps_in_a_row) {
  for (uint32_t world : {1u, 2u, 4u, 7u}) {
    Pages pages(world);
    in_threads(world, [&](uint32_t rank) {
      for (Step step = 1; step <= 1000; ++step) {
        ASSERT_TRUE(pages.votes[rank]->vote(step, 0).decided);
        ASSERT_TRUE(pages.votes[rank]->close(step));
      }
    });
    for (uint32_t rank = 0; rank < world; ++rank) {
      EXPECT_EQ(pages.word(rank), (StepWord{kIdentity, 1001, Vote::kOpen, false}));
    }
  }
}

TEST(StepVoteTest, every_rank_sees_the_flags_of_all_after_the_same_step) {
  constexpr uint32_t kWorld = 4;
  Pages pages(kWorld);
  in_threads(kWorld, [&](uint32_t rank) {
    for (Step step = 1; step <= 200; ++step) {
      const uint32_t mine = (step % kWorld == rank ? 1u : 0u) * kFlagDrain +
                            (step % kWorld != rank && step % 7 == rank ? 1u : 0u) * kFlagStop;
      uint32_t all = kFlagDrain;
      for (uint32_t other = 0; other < kWorld; ++other) {
        all |= (step % kWorld != other && step % 7 == other ? 1u : 0u) * kFlagStop;
      }
      ASSERT_EQ(pages.votes[rank]->vote(step, mine).flags, all) << "step " << step;
      pages.votes[rank]->close(step);
    }
  });
}

TEST(StepVoteTest, a_sealed_rank_can_neither_vote_nor_decide) {
  Pages pages(2);
  pages.seal_all();
  EXPECT_FALSE(pages.votes[0]->vote(1, 0).decided);
  EXPECT_EQ(pages.word(0), (StepWord{kIdentity, 1, Vote::kOpen, true}));
}

TEST(StepVoteTest, votes_for_the_same_are_decided_whoever_says_nothing) {
  constexpr uint32_t kWorld = 4;
  Pages pages(kWorld);
  in_threads(kWorld, [&](uint32_t rank) {
    for (Step step = 1; step <= 200; ++step) {
      if (step % kWorld != rank) {
        store_digest(pages.workers[rank], step, {step * 7, step});
      }
      ASSERT_TRUE(pages.votes[rank]->vote(step, 0).decided) << "step " << step;
      pages.votes[rank]->close(step);
    }
  });
  EXPECT_EQ(pages.differs.load(), 0u);
}

TEST(StepVoteTest, nobody_decides_on_votes_for_different_things_and_one_tells) {
  constexpr uint32_t kWorld = 4;
  constexpr Step kFlipped = 20;
  for (uint32_t odd = 0; odd < kWorld; ++odd) {
    for (const bool state : {false, true}) {
      Pages pages(kWorld);
      std::thread sealer([&] {
        while (pages.differs.load() == 0) {
          std::this_thread::yield();
        }
        pages.seal_all();
      });
      in_threads(kWorld, [&](uint32_t rank) {
        for (Step step = 1; step <= kFlipped; ++step) {
          const uint64_t flip = step == kFlipped && rank == odd ? 1 : 0;
          store_digest(pages.workers[rank], step, {step ^ (state ? 0 : flip), 5 ^ (state ? flip : 0)});
          ASSERT_EQ(pages.votes[rank]->vote(step, 0).decided, step < kFlipped);
          pages.votes[rank]->close(step);
        }
      });
      sealer.join();
      EXPECT_EQ(pages.differs.load(), kFlipped);
      for (uint32_t rank = 0; rank < kWorld; ++rank) {
        EXPECT_EQ(pages.word(rank), (StepWord{kIdentity, kFlipped, Vote::kYes, true})) << "rank " << rank;
      }
    }
  }
}

TEST(StepVoteTest, a_waiting_voter_is_woken_by_the_interruption_and_stays_at_yes) {
  Pages pages(2);
  std::thread waiter([&] { EXPECT_FALSE(pages.votes[0]->vote(1, 0).decided); });
  while (pages.generation.sleepers.load() == 0) {
    std::this_thread::yield();
  }
  pages.seal_all();
  waiter.join();
  EXPECT_EQ(pages.word(0), (StepWord{kIdentity, 1, Vote::kYes, true}));
}

// Whenever the seal comes: if any rank recorded a decision, every rank had voted, and the words that the sealer read
// lead all survivors to the same verdict that ranks acted on.
TEST(StepVoteTest, a_seal_at_any_instant_never_splits_the_ranks) {
  const char* given = std::getenv("KEEPSTEP_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 7;
  SCOPED_TRACE("repeat with KEEPSTEP_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  int decided_runs = 0;
  for (int round = 0; round < 400; ++round) {
    constexpr uint32_t kWorld = 3;
    Pages pages(kWorld);
    const Step last = 1 + random() % 5;
    const uint32_t seal_after = random() % (last + 1);  // decisions; then at a random instant of the next vote
    const unsigned pause = random() % 2000;
    std::vector<Step> applied(kWorld, 0);
    std::thread sealer([&] {
      while (pages.generation.decided.load() < seal_after) {
        std::this_thread::yield();
      }
      for (unsigned i = 0; i < pause; ++i) {
        cpu_relax();
      }
      pages.seal_all();
    });
    in_threads(kWorld, [&](uint32_t rank) {
      for (Step step = 1; step <= last; ++step) {
        if (!pages.votes[rank]->vote(step, 0).decided) {
          return;
        }
        applied[rank] = step;
        if (!pages.votes[rank]->close(step)) {
          return;
        }
      }
    });
    sealer.join();
    Step newest = 0;
    for (Step step : applied) {
      newest = std::max(newest, step);
    }
    decided_runs += newest > 0;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      const StepWord word = pages.word(rank);
      // No rank is more than the undecided vote behind: it voted on everything that any rank applied.
      const bool voted = word.step > newest || (word.step == newest && word.vote != Vote::kOpen);
      EXPECT_TRUE(voted) << "round " << round << ": rank " << rank << " had not voted on step " << newest;
    }
  }
  EXPECT_GT(decided_runs, 0);
}

}  // namespace
}  // namespace keepstep::rank
