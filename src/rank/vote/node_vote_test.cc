// The vote over several nodes: ranks are threads, each node has its own pages, the leaders communicate by TCP on
// loopback.
#include "rank/vote/node_vote.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "brain/commit/step_commit.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"
#include "rank/vote/step_vote.h"

namespace keepstep::rank {
namespace {

using brain::Identity;
using brain::Rank;
using brain::SealedWord;
using brain::Step;
using brain::StepWord;
using brain::Vote;

constexpr Identity kIdentity{1, 1};
constexpr comm::CommConfig kConfig{
    .max_world = 8, .groups = 2, .slot_bytes = 4096, .group_slot_bytes = 4096, .ring_bytes = 8192};

// Zeroed memory with whole pages, as the agent would allocate it.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096), data_(new(std::align_val_t{4096}) std::byte[bytes_]{}) {}
  ~Memory() { operator delete[](data_, std::align_val_t{4096}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// A generation on several nodes. `nodes`: by rank, numbered from 0.
class Nodes {
 public:
  explicit Nodes(std::vector<uint32_t> nodes) : nodes_(std::move(nodes)), workers_(world()), communicators_(world()) {
    for (uint32_t node = 0; node <= *std::max_element(nodes_.begin(), nodes_.end()); ++node) {
      generations_.push_back(std::make_unique<Memory>(generation_page_bytes(kConfig)));
      page(node).world = static_cast<uint32_t>(std::count(nodes_.begin(), nodes_.end(), node));
      page(node).across = page(node).world < world() ? 1 : 0;
    }
    std::vector<Fd> listeners;
    std::vector<SocketAddress> addresses;
    for (Rank rank = 0; rank < world(); ++rank) {
      arenas_.push_back(std::make_unique<Memory>(comm::arena_bytes(kConfig)));
      listeners.push_back(*listen_tcp({"127.0.0.1", 0}));
      addresses.push_back(*local_address(listeners.back().get()));
    }
    for (Rank rank = 0; rank < world(); ++rank) {
      NodeTree tree(nodes_, rank);
      if (tree.leads) {  // no other rank votes for its node
        comm::TcpConfig tcp{.identity = kIdentity, .self = rank, .addresses = addresses, .key = key_};
        tcp.patience_ns = 20'000'000;
        communicators_[rank] = std::make_unique<comm::Communicator>(
            kConfig, endpoint(rank, make_tcp_transport(tcp, std::move(listeners[rank]))));
        node_votes_.push_back(std::make_unique<NodeVote>(
            *communicators_[rank], tree, pages_on(nodes_[rank]),
            [this](Step step, const std::string& what) { note(step, what); },
            [this](Step step) { differs.store(step); }));
      } else {
        node_votes_.push_back(nullptr);
      }
      votes_.push_back(std::make_unique<StepVote>(workers_[rank], page(nodes_[rank]), kIdentity,
                                                  node_votes_.back().get(), pages_on(nodes_[rank]),
                                                  [this](Step step) { differs.store(step); }));
      votes_.back()->open(0);
    }
  }
  ~Nodes() {
    for (uint32_t node = 0; node < generations_.size(); ++node) {
      seal(node);  // so no communicator waits for another
    }
    communicators_.clear();
  }

  uint32_t world() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t count() const { return static_cast<uint32_t>(generations_.size()); }
  uint32_t node_of(Rank rank) const { return nodes_[rank]; }
  GenerationPage& page(uint32_t node) { return *reinterpret_cast<GenerationPage*>(generations_[node]->data()); }
  WorkerPage& worker(Rank rank) { return workers_[rank]; }
  StepVote& vote(Rank rank) { return *votes_[rank]; }
  NodeVote& leader(Rank rank) { return *node_votes_[rank]; }
  StepWord word(Rank rank) { return brain::unpack_step_word(workers_[rank].word.load()); }

  SealedWord seal_word(Rank rank) {
    const StepWord was = brain::unpack_step_word(workers_[rank].word.fetch_or(brain::kSealedBit));
    return {rank,
            rank + 1,
            was,
            {brain::StateKind::kClean, 0},
            was.vote == Vote::kOpen ? std::nullopt : load_digest(workers_[rank], was.step)};
  }
  // How this node's agent interrupts.
  std::vector<SealedWord> seal(uint32_t node) {
    std::vector<SealedWord> words;
    page(node).sealing.store(1);
    for (Rank rank = 0; rank < world(); ++rank) {
      if (nodes_[rank] == node) {
        words.push_back(seal_word(rank));
      }
    }
    page(node).interrupted.store(1);
    ring(page(node));
    comm::wake_all(kConfig, generations_[node]->data() + kHeaderBytes);
    return words;
  }
  void lose(Rank leader) { communicators_[leader].reset(); }

  // What leaders reported as broken; waits for the first report.
  std::string broken() {
    while (told_.load() == 0) {
      futex_wait(told_, 0);
    }
    const std::lock_guard lock(mutex_);
    return what_;
  }
  uint32_t times_broken() const { return told_.load(); }

  void in_threads(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < world(); ++rank) {
      threads.emplace_back(body, rank);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  std::atomic<Step> differs = 0;  // the step for which different votes were reported

  void await_vote(Rank rank) {
    while (word(rank).vote == Vote::kOpen) {
      std::this_thread::yield();
    }
  }

 private:
  comm::Endpoint endpoint(Rank self, std::shared_ptr<comm::Transport> transport) {
    const uint32_t node = nodes_[self];
    comm::Endpoint endpoint{.self = self,
                            .generation = generations_[node]->data() + kHeaderBytes,
                            .interrupted = &page(node).interrupted,
                            .nodes = nodes_,
                            .transport = std::move(transport)};
    for (Rank rank = 0; rank < world(); ++rank) {
      endpoint.arenas.push_back(nodes_[rank] == node ? arenas_[rank]->data() : nullptr);
    }
    return endpoint;
  }
  std::vector<const WorkerPage*> pages_on(uint32_t node) {
    std::vector<const WorkerPage*> pages;
    for (Rank rank = 0; rank < world(); ++rank) {
      pages.push_back(nodes_[rank] == node ? &workers_[rank] : nullptr);
    }
    return pages;
  }
  void note(Step step, const std::string& what) {
    const std::lock_guard lock(mutex_);
    what_ += "step " + std::to_string(step) + ": " + what + "\n";
    told_.fetch_add(1);
    futex_wake_all(told_);
  }

  const std::vector<uint32_t> nodes_;
  std::vector<std::unique_ptr<Memory>> generations_;
  std::vector<std::unique_ptr<Memory>> arenas_;
  std::vector<WorkerPage> workers_;
  const net::SharedKey key_ = *net::SharedKey::data_of(std::string(32, 's'), kIdentity.term, kIdentity.generation);
  std::mutex mutex_;
  std::string what_;
  std::atomic<uint32_t> told_ = 0;
  std::vector<std::unique_ptr<NodeVote>> node_votes_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;
  std::vector<std::unique_ptr<StepVote>> votes_;
};

struct Shape {
  const char* name;
  std::vector<uint32_t> nodes;
};
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"2x2", {0, 0, 1, 1}}, {"3x1", {0, 1, 2}}, {"2+1", {0, 0, 1}}, {"mixed", {0, 1, 1, 0}}};
  return all;
}

TEST(NodeVoteTest, all_ranks_of_all_nodes_decide_a_thousand_steps_in_a_row) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    Nodes nodes(shape.nodes);
    nodes.in_threads([&](Rank rank) {
      for (Step step = 1; step <= 1000; ++step) {
        ASSERT_TRUE(nodes.vote(rank).vote(step, 0).decided);
        ASSERT_TRUE(nodes.vote(rank).close(step));
      }
    });
    for (Rank rank = 0; rank < nodes.world(); ++rank) {
      EXPECT_EQ(nodes.word(rank), (StepWord{kIdentity, 1001, Vote::kOpen, false}));
    }
    EXPECT_EQ(nodes.times_broken(), 0u);
  }
}

TEST(NodeVoteTest, a_tree_of_three_levels_decides) {
  Nodes nodes({0, 1, 2, 3, 4, 5, 6, 6});
  nodes.in_threads([&](Rank rank) {
    for (Step step = 1; step <= 100; ++step) {
      const VoteResult result = nodes.vote(rank).vote(step, rank == step % 8 ? kFlagDrain : 0u);
      ASSERT_TRUE(result.decided);
      ASSERT_EQ(result.flags, kFlagDrain);
      ASSERT_TRUE(nodes.vote(rank).close(step));
    }
  });
}

TEST(NodeVoteTest, the_root_knows_when_all_nodes_are_formed) {
  Nodes nodes({0, 1, 2});
  std::atomic<uint32_t> entered = 0;
  nodes.in_threads([&](Rank rank) {
    entered.fetch_add(1);
    ASSERT_TRUE(nodes.leader(rank).form());
    ASSERT_EQ(entered.load(), 3u);
    ASSERT_TRUE(nodes.vote(rank).vote(1, 0).decided);
  });
  EXPECT_TRUE(nodes.leader(0).root());
  EXPECT_FALSE(nodes.leader(2).root());
}

TEST(NodeVoteTest, every_rank_sees_the_flags_of_all_nodes_after_the_same_step) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    Nodes nodes(shape.nodes);
    const uint32_t world = nodes.world();
    const auto flags_of = [&](Rank rank, Step step) {
      return (step % world == rank ? kFlagDrain : 0u) | (step % 7 == rank ? kFlagStop : 0u);
    };
    nodes.in_threads([&](Rank rank) {
      for (Step step = 1; step <= 100; ++step) {
        uint32_t all = 0;
        for (Rank other = 0; other < world; ++other) {
          all |= flags_of(other, step);
        }
        ASSERT_EQ(nodes.vote(rank).vote(step, flags_of(rank, step)).flags, all) << "step " << step;
        nodes.vote(rank).close(step);
      }
    });
  }
}

TEST(NodeVoteTest, the_mean_loss_is_added_in_rank_order_whatever_the_nodes) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    Nodes nodes(shape.nodes);
    constexpr Step kSteps = 50;
    struct Loss {
      double sum;
      uint64_t micro_batches;
    };
    std::vector<std::vector<Loss>> losses(kSteps + 1);
    std::vector<double> expected(kSteps + 1);
    for (Step step = 1; step <= kSteps; ++step) {
      double sum = 0;
      uint64_t count = 0;
      for (Rank rank = 0; rank < nodes.world(); ++rank) {
        // A huge spread, so that another order gives other bits; now and then a rank has no loss, and sometimes none
        // has one.
        const uint64_t micro_batches = step % 10 == 0 ? 0 : random() % 4;
        const double loss = micro_batches == 0 ? 0 : std::ldexp(mantissa(random), static_cast<int>(random() % 80));
        losses[step].push_back({loss, micro_batches});
        sum += loss;
        count += micro_batches;
      }
      expected[step] = count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
    }
    nodes.in_threads([&](Rank rank) {
      for (Step step = 1; step <= kSteps; ++step) {
        const auto [sum, micro_batches] = losses[step][rank];
        if (micro_batches != 0) {
          LossSlot& slot = nodes.worker(rank).loss[step % 2];
          slot.step = 0;
          slot.sum = sum;
          slot.micro_batches = micro_batches;
          slot.step = step;
        }
        ASSERT_TRUE(nodes.vote(rank).vote(step, 0).decided);
        const double mean = load_mean(nodes.page(nodes.node_of(rank)), step);
        if (std::isnan(expected[step])) {
          ASSERT_TRUE(std::isnan(mean)) << "step " << step;
        } else {
          ASSERT_EQ(std::bit_cast<uint64_t>(mean), std::bit_cast<uint64_t>(expected[step])) << "step " << step;
        }
        nodes.vote(rank).close(step);
      }
    });
  }
}

TEST(NodeVoteTest, a_sealed_rank_on_another_node_keeps_everyone_from_deciding) {
  Nodes nodes({0, 0, 1, 1});
  nodes.seal_word(3);
  std::vector<std::thread> voters;
  for (Rank rank = 0; rank < 3; ++rank) {
    voters.emplace_back([&, rank] { EXPECT_FALSE(nodes.vote(rank).vote(1, 0).decided); });
  }
  EXPECT_FALSE(nodes.vote(3).vote(1, 0).decided);
  for (Rank rank = 0; rank < 3; ++rank) {
    nodes.await_vote(rank);
  }
  nodes.seal(0);
  nodes.seal(1);
  for (std::thread& voter : voters) {
    voter.join();
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(nodes.word(rank), (StepWord{kIdentity, 1, Vote::kYes, true}));
  }
  EXPECT_EQ(nodes.word(3), (StepWord{kIdentity, 1, Vote::kOpen, true}));
  EXPECT_EQ(nodes.page(0).decided.load(), 0u);
  EXPECT_EQ(nodes.page(1).decided.load(), 0u);
}

// Each node is interrupted by its own agent, in its own time: the other node's ranks wait until then.
TEST(NodeVoteTest, an_interruption_ends_the_waits_of_its_node) {
  Nodes nodes({0, 0, 1, 1});
  std::vector<std::thread> first;
  for (const Rank rank : {0u, 1u}) {
    first.emplace_back([&, rank] { EXPECT_FALSE(nodes.vote(rank).vote(1, 0).decided); });
  }
  std::thread third([&] { EXPECT_FALSE(nodes.vote(2).vote(1, 0).decided); });  // rank 3 never votes
  nodes.await_vote(2);
  nodes.seal(0);
  for (std::thread& voter : first) {
    voter.join();
  }
  EXPECT_EQ(nodes.word(2), (StepWord{kIdentity, 1, Vote::kYes, false}));
  nodes.seal(1);
  third.join();
  EXPECT_EQ(nodes.times_broken(), 0u);
}

TEST(NodeVoteTest, a_lost_link_is_told_once_and_the_voter_keeps_its_vote_until_it_is_sealed) {
  Nodes nodes({0, 1});
  std::thread peer([&] { EXPECT_TRUE(nodes.vote(1).vote(1, 0).decided); });
  EXPECT_TRUE(nodes.vote(0).vote(1, 0).decided);
  peer.join();
  EXPECT_TRUE(nodes.vote(0).close(1));
  std::thread voter([&] { EXPECT_FALSE(nodes.vote(0).vote(2, 0).decided); });
  nodes.await_vote(0);
  nodes.lose(1);
  const std::string what = nodes.broken();
  EXPECT_NE(what.find("step 2: the vote between the nodes cannot go on"), std::string::npos) << what;
  EXPECT_NE(what.find("rank 1"), std::string::npos) << what;
  EXPECT_EQ(nodes.word(0), (StepWord{kIdentity, 2, Vote::kYes, false}));
  nodes.seal(0);
  voter.join();
  EXPECT_EQ(nodes.times_broken(), 1u);
}

TEST(NodeVoteTest, a_leader_that_speaks_of_another_step_is_not_believed) {
  Nodes nodes({0, 1});
  std::thread peer(
      [&] { EXPECT_FALSE(nodes.leader(1).vote(2, 0, [](const NodeVote::Decision&) { return true; }).has_value()); });
  EXPECT_FALSE(nodes.leader(0).vote(1, 0, [](const NodeVote::Decision&) { return true; }).has_value());
  EXPECT_NE(nodes.broken().find("rank 1 speaks for 1 ranks of step 2"), std::string::npos) << nodes.broken();
  nodes.seal(1);
  peer.join();
}

// Whenever the agents seal: the sealed words never contradict what a rank did, even if the words of one node are lost
// with it.
TEST(NodeVoteTest, seals_at_any_instants_never_split_the_ranks) {
  const char* given = std::getenv("KEEPSTEP_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 7;
  SCOPED_TRACE("repeat with KEEPSTEP_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  int decided_runs = 0;
  int forward_runs = 0;
  int redo_runs = 0;
  int lie_runs = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Nodes nodes(shapes()[random() % shapes().size()].nodes);
    const Step last = 1 + random() % 5;
    const uint32_t seal_after = random() % (last + 1);
    // Sometimes a rank dies before a vote: then there is a redo, or the seals come at any point.
    const Rank dying = random() % (2 * nodes.world());
    const Step dies_before = 1 + random() % (last + 1);
    // And sometimes one votes for something other than the rest.
    const Rank lying = random() % (3 * nodes.world());
    const Step lies_at = lying < nodes.world() && nodes.world() > 1 ? 1 + random() % (last + 1) : last + 1;
    std::vector<uint32_t> order(nodes.count());
    std::vector<unsigned> pauses;
    for (uint32_t node = 0; node < nodes.count(); ++node) {
      order[node] = node;
      pauses.push_back(random() % 4000);
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Step> applied(nodes.world(), 0);
    std::vector<SealedWord> words;
    std::atomic<uint32_t> dead = 0;
    std::thread sealer([&] {
      while (nodes.page(order[0]).decided.load() < seal_after && dead.load() == 0 && nodes.differs.load() == 0) {
        std::this_thread::yield();
      }
      for (const uint32_t node : order) {
        for (unsigned i = 0; i < pauses[node]; ++i) {
          cpu_relax();
        }
        const std::vector<SealedWord> of_node = nodes.seal(node);
        words.insert(words.end(), of_node.begin(), of_node.end());
      }
    });
    nodes.in_threads([&](Rank rank) {
      for (Step step = 1; step <= last; ++step) {
        if (rank == dying && step == dies_before) {
          dead.store(1);
          return;
        }
        store_digest(nodes.worker(rank), step, {step * 31 + (rank == lying && step == lies_at ? 1 : 0), 0});
        if (!nodes.vote(rank).vote(step, 0).decided) {
          return;
        }
        applied[rank] = step;
        if (!nodes.vote(rank).close(step)) {
          return;
        }
      }
    });
    sealer.join();
    lie_runs += nodes.differs.load() != 0;
    ASSERT_TRUE(nodes.differs.load() == 0 || nodes.differs.load() == lies_at);
    const Step newest = *std::max_element(applied.begin(), applied.end());
    decided_runs += newest > 0;
    const auto voted_on = [](const StepWord& word, Step step) {
      return step == 0 || word.step > step || (word.step == step && word.vote != Vote::kOpen);
    };
    for (uint32_t lost = 1; lost <= nodes.count(); ++lost) {  // the first node is never lost while the job lives
      std::vector<SealedWord> survivors;
      std::copy_if(words.begin(), words.end(), std::back_inserter(survivors),
                   [&](const SealedWord& word) { return nodes.node_of(word.rank) != lost; });
      const brain::Verdict verdict = brain::decide(kIdentity, 0, survivors, nodes.count() > 1);
      ASSERT_GE(verdict.version, newest) << "without node " << lost << ": " << verdict.because;
      ASSERT_LE(verdict.version, newest + 1) << "without node " << lost << ": " << verdict.because;
      ASSERT_LT(verdict.version, lies_at) << "without node " << lost << ": " << verdict.because;
      for (const SealedWord& word : survivors) {
        ASSERT_TRUE(voted_on(word.word, verdict.version)) << "rank " << word.rank << ": " << verdict.because;
      }
      if (lost == nodes.count()) {
        forward_runs += verdict.version > newest;
        redo_runs += !verdict.forward;
      }
    }
    for (const SealedWord& word : words) {
      ASSERT_TRUE(voted_on(word.word, newest)) << "rank " << word.rank << " had not voted on step " << newest;
    }
    ASSERT_EQ(nodes.times_broken(), 0u);
  }
  EXPECT_GT(decided_runs, 0);
  EXPECT_GT(redo_runs, 0);
  EXPECT_GT(lie_runs, 0);
  RecordProperty("forward_without_a_decision", forward_runs);
}

}  // namespace
}  // namespace keepstep::rank
