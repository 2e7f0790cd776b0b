#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "comm/layout.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

constexpr size_t kCount = 40'000;  // floats: more than two chunks

bool all_are(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [&](float v) { return v == value; });
}

// Buffers for any operation of a world of two; full of ones, so that zeros show.
struct Buffers {
  std::vector<float> in_place = std::vector<float>(kCount, 1.0F);
  std::vector<std::vector<float>> inputs = std::vector(2, std::vector<float>(kCount, 1.0F));
  std::vector<std::vector<float>> outputs = std::vector(2, std::vector<float>(kCount, 1.0F));
  std::vector<const void*> in() const { return {inputs[0].data(), inputs[1].data()}; }
  std::vector<void*> out() { return {outputs[0].data(), outputs[1].data()}; }
};

struct Case {
  std::string name;
  std::function<OpId(Communicator&, Buffers&)> start;
  int outputs = 0;  // how many must be zeros afterwards; the others, and in-place buffers, stay unchanged
};

std::vector<Case> cases() {
  constexpr size_t kBytes = kCount * sizeof(float);
  const std::vector<size_t> both(2, kBytes);
  return {
      {"all_reduce",
       [](auto& c, auto& b) {
         return c.all_reduce(kWorld, b.in_place.data(), kCount, DataType::kFloat32, ReduceOp::kSum);
       }},
      {"reduce",
       [](auto& c, auto& b) {
         return c.reduce(kWorld, b.in_place.data(), kCount, DataType::kFloat32, ReduceOp::kSum, 0);
       }},
      {"broadcast", [](auto& c, auto& b) { return c.broadcast(kWorld, b.in_place.data(), kBytes, 1); }},
      {"all_gather", [](auto& c, auto& b) { return c.all_gather(kWorld, b.in()[0], b.out(), kBytes); }, 2},
      {"reduce_scatter",
       [](auto& c, auto& b) {
         return c.reduce_scatter(kWorld, b.in(), b.out()[0], kCount, DataType::kFloat32, ReduceOp::kSum);
       },
       1},
      {"gather", [](auto& c, auto& b) { return c.gather(kWorld, b.in()[0], b.out(), kBytes, 0); }, 2},
      {"scatter", [](auto& c, auto& b) { return c.scatter(kWorld, {}, b.out()[0], kBytes, 1); }, 1},
      {"all_to_all", [both](auto& c, auto& b) { return c.all_to_all(kWorld, b.in(), both, b.out(), both); }, 2},
      {"all_reduce_canonical",
       [](auto& c, auto& b) {
         return c.all_reduce_canonical(kWorld, {2, 0, 1}, {b.in()[0]}, b.out()[0], kCount, DataType::kFloat32, 2);
       },
       1},
      {"barrier", [](auto& c, auto&) { return c.barrier(kWorld); }},
      {"send", [](auto& c, auto& b) { return c.send(kWorld, b.in()[0], kBytes, 1, 0); }},
      {"receive", [](auto& c, auto& b) { return c.receive(kWorld, b.out()[0], kBytes, 1, 0); }, 1},
  };
}

void expect_cut_short(const Case& c, const Completion& completion, const Buffers& buffers) {
  EXPECT_EQ(completion.outcome, Outcome::kInterrupted) << c.name << " " << completion.error;
  EXPECT_TRUE(all_are(buffers.in_place, 1.0F)) << c.name;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(all_are(buffers.outputs[i], i < c.outputs ? 0.0F : 1.0F)) << c.name;
  }
}

TEST(Interruption, ends_every_kind_of_operation_that_waits_and_all_later_ones) {
  for (const Case& c : cases()) {
    TestWorld world(2);
    const auto comm = world.communicator(0);  // rank 1 never comes
    Buffers waiting;
    Buffers queued;
    const OpId first = c.start(*comm, waiting);
    const OpId second = c.start(*comm, queued);
    EXPECT_EQ(comm->test(first).outcome, Outcome::kPending);
    EXPECT_FALSE(comm->interrupted());
    world.interrupt();
    EXPECT_TRUE(comm->interrupted());
    expect_cut_short(c, finish(*comm, first), waiting);
    expect_cut_short(c, finish(*comm, second), queued);
    Buffers late;
    expect_cut_short(c, finish(*comm, c.start(*comm, late)), late);
  }
}

TEST(Interruption, wakes_a_rank_that_sleeps_in_wait) {
  for (const Case& c : cases()) {
    TestWorld world(2);
    const auto comm = world.communicator(0);
    Buffers buffers;
    const OpId op = c.start(*comm, buffers);
    std::thread waiter([&] {
      world.signal();
      expect_cut_short(c, finish(*comm, op), buffers);
    });
    world.await(1);
    world.interrupt();
    waiter.join();
  }
}

// How far a rank got in the world group.
uint64_t phase_of(TestWorld& world, Rank rank) {
  return Layout(world.config()).lines(world.generation(), kWorld)[rank].phase.load();
}

TEST(Interruption, a_rank_killed_in_the_middle_of_a_large_all_reduce_leaves_all_others_free) {
  TestWorld world(4);
  constexpr Rank kVictim = 2;
  std::vector<pid_t> pids;
  for (Rank rank = 0; rank < 4; ++rank) {
    pids.push_back(world.fork_rank(rank, [&](Communicator& comm, Rank) {
      std::vector<float> data((64 << 20) / sizeof(float), 1.0F);
      const OpId large = comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
      const OpId next = comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(finish(comm, large).outcome, Outcome::kInterrupted);
      EXPECT_EQ(finish(comm, next).outcome, Outcome::kInterrupted);
    }));
  }
  while (phase_of(world, kVictim) < 20) {  // of 1025
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

TEST(Interruption, a_rank_killed_in_the_middle_of_a_message_leaves_its_peers_free) {
  TestWorld world(3);
  std::vector<pid_t> pids;
  for (Rank rank = 0; rank < 3; ++rank) {
    pids.push_back(world.fork_rank(rank, [&](Communicator& comm, Rank self) {
      std::vector<uint8_t> data(64 << 20, 1);
      const OpId op = self == 1   ? comm.send(kWorld, data.data(), data.size(), 0, 0)
                      : self == 0 ? comm.receive(kWorld, data.data(), data.size(), 1, 0)
                                  : comm.receive(kWorld, data.data(), 100, 1, 0);
      EXPECT_EQ(finish(comm, op).outcome, Outcome::kInterrupted);
      EXPECT_EQ(data[50], self == 1 ? 1 : 0);
    }));
  }
  const Layout layout(world.config());
  while (layout.pair(world.generation(), 1, 0).sender.bytes_written.load() == 0) {
    std::this_thread::yield();
  }
  kill(pids[1], SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(TestWorld::status_of(pids[1])));
  world.interrupt();
  EXPECT_EQ(TestWorld::status_of(pids[0]), 0);
  EXPECT_EQ(TestWorld::status_of(pids[2]), 0);
}

TEST(Interruption, lets_the_destructor_go_with_operations_outstanding) {
  for (const Case& c : cases()) {
    TestWorld world(2);
    auto comm = world.communicator(0);
    Buffers buffers;
    for (int i = 0; i < 3; ++i) {
      c.start(*comm, buffers);
    }
    world.interrupt();
    comm.reset();
  }
}

TEST(Interruption, frees_who_waits_for_the_lock_of_a_dead_member) {
  TestWorld world(2);
  const auto comm = world.communicator(0);
  Layout(world.config()).header(world.generation()).table_lock.store(2);  // held by rank 1, which died
  std::thread creator([&] {
    world.signal();
    EXPECT_EQ(comm->create_group({0, 1}, "never").status().code(), absl::StatusCode::kUnavailable);
  });
  world.await(1);
  world.interrupt();
  creator.join();
}

TEST(Interruption, arenas_serve_the_next_generation) {
  TestWorld world(2);
  for (int generation = 0; generation < 3; ++generation) {
    world.words().interrupted.store(0);
    std::memset(world.generation(), 0, generation_bytes(world.config()));
    world.run(Mode::kThreads, [&](Communicator& comm, Rank) {
      std::vector<float> data(kCount, 1.0F);
      expect_done(comm, comm.all_reduce(kWorld, data.data(), kCount, DataType::kFloat32, ReduceOp::kSum));
      EXPECT_TRUE(all_are(data, 2.0F));
    });
    world.interrupt();
  }
}

}  // namespace
}  // namespace keepstep::comm
