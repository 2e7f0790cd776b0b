// The property of design/reproducible.md: sums over the canonical tree have the same bits for every number of ranks.

#include "comm/collectives/canonical_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <map>

#include "comm/collectives/canonical_sum.h"
#include "comm/collectives/canonical_testing.h"
#include "comm/layout.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CommConfig many_ranks() {
  CommConfig config = small_config();
  config.max_world = 16;
  config.groups = 2;
  config.ring_bytes = 4 << 10;
  return config;
}

std::vector<LeafRun> even_runs(uint32_t leaves, size_t ranks) {
  std::vector<LeafRun> runs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    runs.push_back(even_run(leaves, rank, ranks));
  }
  return runs;
}

// Any tiling, in any order of the ranks, empty runs included.
std::vector<LeafRun> random_runs(std::mt19937_64& random, uint32_t leaves, size_t ranks) {
  std::vector<uint32_t> cuts{0, leaves};
  while (cuts.size() < ranks + 1) {
    cuts.push_back(random() % (leaves + 1));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<LeafRun> runs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    runs.push_back({leaves, cuts[rank], cuts[rank + 1]});
  }
  std::shuffle(runs.begin(), runs.end(), random);
  return runs;
}

struct Problem {
  DataType type;
  uint32_t leaves;
  size_t count;
  uint64_t weight;
  std::vector<Leaf> values;
  Leaf expected;  // by one process, from the definition
};

// All M of issue 4, each type, sizes from one element to many chunks.
std::vector<Problem> problems(std::mt19937_64& random) {
  std::vector<Problem> result;
  for (const uint32_t leaves : {8U, 16U, 24U, 64U, 96U}) {
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat64, DataType::kFloat16}) {
      for (const size_t count : {1, 130, 9001}) {
        const int spread = std::array{2, 12, 40, 100}[random() % 4];
        const uint64_t weight = random() % 3 == 0 ? 0 : 1 + random() % 1000;  // of each leaf
        Problem problem{type, leaves, count, weight, random_leaves(random, type, leaves, count, spread), {}};
        problem.expected = reference_sum(problem.values, type, type, 0, leaves, weight * leaves);
        result.push_back(std::move(problem));
      }
    }
  }
  return result;
}

OpId reduce(Communicator& comm, const CanonicalSum& sum, const LeafRun& run, Leaf& output, DataType type, size_t count,
            uint64_t weight) {
  return comm.all_reduce_canonical(kWorld, run, sum.partials(), output.data(), count, type, weight);
}

struct World {
  Mode mode;
  std::vector<uint32_t> nodes;  // by rank
  std::string name() const {
    std::string result = mode_name(mode) + "_";
    for (const uint32_t node : nodes) {
      result += static_cast<char>('0' + node);
    }
    return result;
  }
  bool across() const { return *std::max_element(nodes.begin(), nodes.end()) > 0; }
  TestWorld make() const { return TestWorld(nodes.size(), many_ranks(), across() ? nodes : std::vector<uint32_t>{}); }
};

class CanonicalReduce : public testing::TestWithParam<World> {};

TEST_P(CanonicalReduce, has_the_bits_of_one_process_for_every_tree_type_size_and_tiling) {
  const size_t ranks = GetParam().nodes.size();
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  const std::vector<Problem> all = problems(random);
  std::vector<std::vector<std::vector<LeafRun>>> tilings;  // by problem
  for (const Problem& problem : all) {
    tilings.push_back({even_runs(problem.leaves, ranks), random_runs(random, problem.leaves, ranks)});
  }
  GetParam().make().run(GetParam().mode, [&](Communicator& comm, Rank self) {
    for (size_t p = 0; p < all.size(); ++p) {
      const Problem& problem = all[p];
      for (const std::vector<LeafRun>& runs : tilings[p]) {
        const LeafRun& run = runs[self];
        const CanonicalSum sum = sum_of(run, problem.values, problem.type);
        Leaf output(problem.expected.size());
        expect_done(
            comm, reduce(comm, sum, run, output, problem.type, problem.count, problem.weight * (run.end - run.begin)));
        EXPECT_TRUE(output == problem.expected)
            << name(problem.type) << ", " << problem.leaves << " leaves, " << problem.count << " elements, rank "
            << self << " owns [" << run.begin << ", " << run.end << "); " << repeat_with();
      }
    }
  });
}

std::vector<World> worlds() {
  std::vector<World> result;
  for (size_t ranks = 1; ranks <= 16; ++ranks) {
    result.push_back({Mode::kProcesses, std::vector<uint32_t>(ranks)});
  }
  for (const size_t ranks : {2, 3, 5}) {
    result.push_back({Mode::kThreads, std::vector<uint32_t>(ranks)});
  }
  // Over TCP between "nodes".
  for (const std::vector<uint32_t>& nodes :
       {std::vector<uint32_t>{0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 1, 2, 2}}) {
    result.push_back({Mode::kProcesses, nodes});
  }
  std::vector<uint32_t> two(16);
  std::fill(two.begin() + 8, two.end(), 1);
  result.push_back({Mode::kProcesses, two});
  result.push_back({Mode::kThreads, {0, 1, 1}});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Worlds, CanonicalReduce, testing::ValuesIn(worlds()),
                         [](const auto& info) { return info.param.name(); });

TEST(CanonicalReduceNodes, runs_that_overlap_across_nodes_name_both_sides) {
  TestWorld(3, many_ranks(), {0, 1, 1}).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const LeafRun runs[] = {{16, 0, 6}, {16, 4, 12}, {16, 12, 16}};
    const std::vector<Leaf> values(16, Leaf(4000));
    const CanonicalSum sum = sum_of(runs[self], values, DataType::kFloat32);
    Leaf output(4000);
    const Completion completion = finish(comm, reduce(comm, sum, runs[self], output, DataType::kFloat32, 1000, 0));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error,
                AllOf(HasSubstr("leaves [4, 6) of 16 are two ranks'"), HasSubstr("rank 0 brings leaves [0, 6)"),
                      HasSubstr("rank 1 brings leaves [4, 12)")));
  });
}

// A rank's part in a sum of ones over `leaves`, in a world that shares them evenly.
struct Ones {
  Ones(uint32_t leaves, size_t ranks, Rank self, size_t count) : Ones(even_run(leaves, self, ranks), count) {}
  Ones(const LeafRun& given, size_t count)
      : run(given), values(run.leaves, Leaf(count * 4)), output(count * 4), sum(count, DataType::kFloat32) {
    for (size_t i = 0; i < count; ++i) {
      put(values[0].data(), DataType::kFloat32, i, 1.0);
    }
    std::fill(values.begin() + 1, values.end(), values[0]);
    sum = sum_of(run, values, DataType::kFloat32);
  }
  OpId start(Communicator& comm, uint64_t weight = 0, int64_t timeout_ns = -1) {
    return comm.all_reduce_canonical(kWorld, run, sum.partials(), output.data(), sum.count(), DataType::kFloat32,
                                     weight, timeout_ns);
  }
  bool all_are(double value) const {
    for (size_t i = 0; i < sum.count(); ++i) {
      if (element(output.data(), DataType::kFloat32, i) != value) {
        return false;
      }
    }
    return true;
  }
  LeafRun run;
  std::vector<Leaf> values;
  Leaf output;
  CanonicalSum sum;
};

TEST(CanonicalReduceCalls, more_ranks_than_leaves_leave_some_ranks_without_any) {
  TestWorld(5, many_ranks()).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    for (const size_t count : {1, 50'000}) {
      Ones ones(3, 5, self, count);
      EXPECT_EQ(ones.sum.partials().size(), self < 3 ? 1U : 0U);
      expect_done(comm, ones.start(comm));
      EXPECT_TRUE(ones.all_are(3.0)) << count;
    }
  });
}

TEST(CanonicalReduceCalls, weights_of_all_ranks_divide_the_sum_once) {
  TestWorld(3, many_ranks()).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    Ones ones(12, 3, self, 10'000);
    expect_done(comm, ones.start(comm, self));  // 0 + 1 + 2
    EXPECT_TRUE(ones.all_are(4.0));
  });
}

TEST(CanonicalReduceCalls, follow_other_collectives_without_waiting) {
  TestWorld(4, many_ranks()).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    std::vector<std::unique_ptr<Ones>> all;
    std::vector<std::vector<float>> plain;
    std::vector<OpId> ops;
    for (size_t round = 0; round < 40; ++round) {
      all.push_back(std::make_unique<Ones>(5 + round, 4, self, round * round * round % 30'000));
      plain.emplace_back(round * 777 % 20'000, 1.0F);
    }
    for (size_t round = 0; round < 40; ++round) {
      ops.push_back(all[round]->start(comm));
      ops.push_back(
          comm.all_reduce(kWorld, plain[round].data(), plain[round].size(), DataType::kFloat32, ReduceOp::kSum));
      if (round % 5 == 0) {
        ops.push_back(comm.barrier(kWorld));
      }
    }
    for (const OpId op : ops) {
      expect_done(comm, op);
    }
    for (size_t round = 0; round < 40; ++round) {
      EXPECT_TRUE(all[round]->all_are(5.0 + static_cast<double>(round))) << round;
      EXPECT_THAT(plain[round], testing::Each(4.0F));
    }
  });
}

TEST(CanonicalReduceCalls, work_in_any_group_and_with_the_smallest_slots) {
  CommConfig tiny = many_ranks();
  tiny.slot_bytes = 0;  // rounded up to one line a rank: 1 KiB
  tiny.group_slot_bytes = 0;
  TestWorld(3, tiny).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 1) {
      return;
    }
    const auto group = comm.create_group({2, 0}, "two");
    ASSERT_TRUE(group.ok());
    Ones ones(16, 2, self == 2 ? 0 : 1, 5'000);
    expect_done(comm, comm.all_reduce_canonical(*group, ones.run, ones.sum.partials(), ones.output.data(), 5'000,
                                                DataType::kFloat32, 16));
    EXPECT_TRUE(ones.all_are(0.5));
  });
}

TEST(CanonicalReduceCalls, partial_sums_that_do_not_fit_the_slots_are_told) {
  CommConfig tiny = many_ranks();
  tiny.slot_bytes = 0;  // 1 KiB: four float32 sums of 64 elements each
  TestWorld(2, tiny).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    Ones ones(self == 0 ? LeafRun{64, 0, 1} : LeafRun{64, 1, 64}, 5'000);
    const Completion completion = finish(comm, ones.start(comm));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, HasSubstr("a rank brings 6 partial sums, too many for the group's slots of 1024"));
  });
}

// Each rank makes a call of its own; all fail with `parts` in their error, and the group still works.
template <class... Parts>
void expect_disagreement(size_t ranks, const std::function<OpId(Communicator&, Rank)>& call, Parts... parts) {
  TestWorld(ranks, many_ranks()).run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    const Completion completion = finish(comm, call(comm, self));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, AllOf(HasSubstr(parts)...));
    for (const size_t count : {10, 40'000}) {
      Ones ones(6, ranks, self, count);
      expect_done(comm, ones.start(comm));
      EXPECT_TRUE(ones.all_are(6.0));
    }
  });
}

// What a call uses lives as long as the process.
Ones& kept(const LeafRun& run, size_t count) {
  static std::vector<std::unique_ptr<Ones>> all;
  return *all.emplace_back(std::make_unique<Ones>(run, count));
}

TEST(CanonicalReduceMismatch, in_the_number_of_leaves_names_both_sides) {
  expect_disagreement(
      3, [](Communicator& comm, Rank self) { return kept(even_run(self == 2 ? 24 : 16, self, 3), 1000).start(comm); },
      "ranks 0, 1 called all_reduce_canonical (1000 x float32, over 16 leaves)",
      "rank 2 called all_reduce_canonical (1000 x float32, over 24 leaves)");
}

TEST(CanonicalReduceMismatch, in_size_names_both_sides) {
  expect_disagreement(
      2, [](Communicator& comm, Rank self) { return kept(even_run(16, self, 2), 70'000 + self).start(comm); },
      "rank 0 called all_reduce_canonical (70000 x float32", "rank 1 called all_reduce_canonical (70001 x float32");
}

TEST(CanonicalReduceMismatch, with_a_plain_all_reduce_names_both_sides) {
  expect_disagreement(
      2,
      [](Communicator& comm, Rank self) {
        Ones& ones = kept(even_run(16, self, 2), 1000);
        return self == 0 ? ones.start(comm)
                         : comm.all_reduce(kWorld, ones.output.data(), 1000, DataType::kFloat32, ReduceOp::kSum);
      },
      "rank 0 called all_reduce_canonical", "rank 1 called all_reduce (sum of 1000 x float32");
}

TEST(CanonicalReduceMismatch, in_runs_that_overlap_names_both_sides_and_the_leaves) {
  expect_disagreement(
      3,
      [](Communicator& comm, Rank self) {
        const LeafRun runs[] = {{16, 0, 6}, {16, 4, 12}, {16, 12, 16}};
        return kept(runs[self], 1000).start(comm);
      },
      "leaves [4, 6) of 16 are two ranks'", "rank 0 brings leaves [0, 6)", "rank 1 brings leaves [4, 12)");
}

TEST(CanonicalReduceMismatch, in_runs_that_leave_a_gap_names_both_sides_and_the_leaves) {
  expect_disagreement(
      3,
      [](Communicator& comm, Rank self) {
        const LeafRun runs[] = {{16, 12, 16}, {16, 5, 5}, {16, 0, 9}};
        return kept(runs[self], 30'000).start(comm);
      },
      "leaves [9, 12) of 16 are nobody's", "rank 2 brings leaves [0, 9)", "rank 0 brings leaves [12, 16)");
}

TEST(CanonicalReduceMismatch, missing_leaves_at_the_end_are_told) {
  expect_disagreement(
      2, [](Communicator& comm, Rank self) { return kept(even_run(16, self, 4), 1000).start(comm); },
      "leaves [8, 16) of 16 are nobody's", "rank 1 brings leaves [4, 8)");
}

TEST(CanonicalReduceMismatch, a_call_whose_arguments_are_no_good_is_refused_on_all_ranks) {
  std::map<std::string, std::function<OpId(Communicator&, Ones&)>> bad = {
      {"not for int32",
       [](Communicator& comm, Ones& ones) {
         return comm.all_reduce_canonical(kWorld, ones.run, ones.sum.partials(), ones.output.data(), 10,
                                          DataType::kInt32, 0);
       }},
      {"2 partial sums were given for leaves [8, 16) of 16, which are 1 subtrees",
       [](Communicator& comm, Ones& ones) {
         auto partials = ones.sum.partials();
         partials.push_back(partials[0]);
         return comm.all_reduce_canonical(kWorld, ones.run, partials, ones.output.data(), 10, DataType::kFloat32, 0);
       }},
      {"[8, 17) is no run of leaves of a tree over 16",
       [](Communicator& comm, Ones& ones) {
         return comm.all_reduce_canonical(kWorld, {16, 8, 17}, ones.sum.partials(), ones.output.data(), 10,
                                          DataType::kFloat32, 0);
       }},
      {"partial sum buffer 0 is null",
       [](Communicator& comm, Ones& ones) {
         return comm.all_reduce_canonical(kWorld, ones.run, {nullptr}, ones.output.data(), 10, DataType::kFloat32, 0);
       }},
  };
  for (const auto& [words, call] : bad) {
    TestWorld(2, many_ranks()).run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
      Ones ones(16, 2, self, 10);
      const Completion completion = finish(comm, self == 1 ? call(comm, ones) : ones.start(comm));
      EXPECT_EQ(completion.outcome, Outcome::kFailed);
      EXPECT_THAT(completion.error, HasSubstr(self == 1 ? words : "rank 1 called a call that was refused there"));
      Ones again(16, 2, self, 10);
      expect_done(comm, again.start(comm));
    });
  }
}

TEST(CanonicalReduceMismatch, a_group_of_one_must_bring_all_leaves) {
  TestWorld world(1);
  const auto comm = world.communicator(0);
  Ones some(LeafRun{8, 0, 7}, 10);
  EXPECT_THAT(finish(*comm, some.start(*comm)).error,
              HasSubstr("leaves [7, 8) of 8 are nobody's: rank 0 brings leaves [0, 7)"));
  Ones all(LeafRun{8, 0, 8}, 10);
  expect_done(*comm, all.start(*comm, 16));
  EXPECT_TRUE(all.all_are(0.5));
}

TEST(CanonicalReduceTime, a_rank_that_does_not_come_is_named) {
  TestWorld(3, many_ranks()).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 1) {
      return;
    }
    Ones ones(16, 3, self, 1000);
    const Completion completion = finish(comm, ones.start(comm, 0, 50'000'000));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, testing::AnyOf(HasSubstr("rank 1 did not arrive within 0.05 s"),
                                                 HasSubstr("gave up waiting in this group")));
  });
}

TEST(CanonicalReduceInterruption, a_rank_killed_in_the_middle_leaves_all_others_free_with_zeros) {
  TestWorld world(4, many_ranks());
  constexpr Rank kVictim = 2;
  std::vector<pid_t> pids;
  for (Rank rank = 0; rank < 4; ++rank) {
    pids.push_back(world.fork_rank(rank, [&](Communicator& comm, Rank self) {
      Ones large(16, 4, self, 8 << 20);
      Ones next(16, 4, self, 100);
      std::fill(large.output.begin(), large.output.end(), std::byte{1});
      std::fill(next.output.begin(), next.output.end(), std::byte{1});
      const OpId first = large.start(comm);
      const OpId second = next.start(comm);
      EXPECT_EQ(finish(comm, first).outcome, Outcome::kInterrupted);
      EXPECT_EQ(finish(comm, second).outcome, Outcome::kInterrupted);
      EXPECT_TRUE(large.all_are(0.0));
      EXPECT_TRUE(next.all_are(0.0));
    }));
  }
  const Layout layout(world.config());
  while (layout.lines(world.generation(), kWorld)[kVictim].phase.load() < 20) {
    std::this_thread::yield();
  }
  kill(pids[kVictim], SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(TestWorld::status_of(pids[kVictim])));
  world.interrupt();
  for (Rank rank = 0; rank < 4; ++rank) {
    if (rank != kVictim) {
      EXPECT_EQ(TestWorld::status_of(pids[rank]), 0) << rank;
    }
  }
}

}  // namespace
}  // namespace keepstep::comm
