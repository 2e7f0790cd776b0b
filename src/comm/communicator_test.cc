// Operations as their callers see them: test, wait, watch, forget, close, and the end of a communicator.

#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;

TEST(Communicator, an_operation_is_pending_until_its_peers_came) {
  TestWorld world(2);
  const auto first = world.communicator(0);
  const auto second = world.communicator(1);
  const OpId op = first->barrier(kWorld);
  EXPECT_EQ(first->test(op).outcome, Outcome::kPending);
  const OpId peer = second->barrier(kWorld);
  EXPECT_EQ(first->wait(op).outcome, Outcome::kDone);
  EXPECT_EQ(first->test(op).outcome, Outcome::kDone);
  expect_done(*second, peer);
  first->forget(op);
  EXPECT_THAT(first->test(op).error, HasSubstr("is not known"));
}

TEST(Communicator, calls_from_one_thread_can_serve_two_ranks_since_work_goes_on_behind) {
  TestWorld world(2);
  const auto first = world.communicator(0);
  const auto second = world.communicator(1);
  std::vector<OpId> ops[2];
  for (int i = 0; i < 50; ++i) {
    ops[0].push_back(first->barrier(kWorld));
    ops[1].push_back(second->barrier(kWorld));
  }
  for (int i = 0; i < 50; ++i) {
    expect_done(*first, ops[0][i]);
    expect_done(*second, ops[1][i]);
  }
}

TEST(Communicator, watched_operations_are_reported_once_in_the_order_they_completed) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank) {
    std::vector<OpId> ops;
    for (int i = 0; i < 20; ++i) {
      ops.push_back(comm.barrier(kWorld));
      if (i % 5 == 4) {
        comm.wait(ops.back());  // watched after it completed: reported all the same
      }
      comm.watch(ops.back());
      comm.watch(ops.back());
    }
    std::vector<OpId> reported;
    while (reported.size() < ops.size()) {
      for (const Completion& completion : comm.next_completed()) {
        EXPECT_EQ(completion.outcome, Outcome::kDone);
        reported.push_back(completion.op);
      }
    }
    EXPECT_EQ(std::set(reported.begin(), reported.end()), std::set(ops.begin(), ops.end()));
    EXPECT_EQ(reported.size(), ops.size());
    EXPECT_THAT(comm.test(ops[0]).error, HasSubstr("is not known"));
  });
}

TEST(Communicator, close_ends_next_completed) {
  TestWorld world(2);
  const auto comm = world.communicator(0);
  std::thread watcher([&] {
    world.signal();
    EXPECT_TRUE(comm->next_completed().empty());
  });
  world.await(1);
  comm->close();
  watcher.join();
  EXPECT_TRUE(comm->next_completed().empty());
}

TEST(Communicator, a_waiter_gets_its_answer_though_a_watcher_took_the_operation) {
  TestWorld world(2);
  const auto comm = world.communicator(0);
  const auto peer = world.communicator(1);
  const OpId op = comm->barrier(kWorld);
  comm->watch(op);
  std::thread watcher([&] { EXPECT_EQ(comm->next_completed().size(), 1U); });
  const OpId other = peer->barrier(kWorld);
  watcher.join();
  expect_done(*peer, other);
}

TEST(Communicator, several_threads_may_call_and_wait) {
  TestWorld(2).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    std::vector<std::thread> threads;
    for (uint32_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        for (uint32_t i = 0; i < 50; ++i) {
          uint32_t word = self == 0 ? i : 0;
          expect_done(comm, self == 0 ? comm.send(kWorld, &word, 4, 1, tag) : comm.receive(kWorld, &word, 4, 0, tag));
          EXPECT_EQ(word, i);
          float value = 1.0F;  // all the same call, so that any order of the threads is right
          expect_done(comm, comm.all_reduce(kWorld, &value, 1, DataType::kFloat32, ReduceOp::kSum));
          EXPECT_EQ(value, 2.0F);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(comm.collectives_entered(), 200U);
  });
}

TEST(Communicator, the_destructor_waits_for_what_is_queued) {
  TestWorld world(2);
  std::vector<float> data[2] = {std::vector<float>(50'000, 1.0F), std::vector<float>(50'000, 1.0F)};
  std::vector<uint8_t> message(100'000, 9);
  std::vector<uint8_t> received(100'000);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    for (int i = 0; i < 5; ++i) {
      comm.all_reduce(kWorld, data[self].data(), data[self].size(), DataType::kFloat32, ReduceOp::kSum);
    }
    self == 0 ? comm.send(kWorld, message.data(), message.size(), 1, 0)
              : comm.receive(kWorld, received.data(), received.size(), 0, 0);
  });
  EXPECT_THAT(data[0], testing::Each(32.0F));
  EXPECT_THAT(data[1], testing::Each(32.0F));
  EXPECT_EQ(received, message);
}

TEST(Communicator, a_rank_starts_no_thread_it_does_not_need) {
  const auto threads = [] {
    int count = -1;
    if (FILE* status = fopen("/proc/self/status", "r")) {
      char line[256];
      while (fgets(line, sizeof(line), status) != nullptr) {
        sscanf(line, "Threads: %d", &count);
      }
      fclose(status);
    }
    return count;
  };
  TestWorld(2).run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    std::thread([] {}).join();  // a sanitizer starts a thread of its own with a process's first one
    const int before = threads();
    expect_done(comm, comm.barrier(kWorld));
    EXPECT_EQ(threads(), before + 1);
    uint32_t word = 1;
    expect_done(comm, self == 0 ? comm.send(kWorld, &word, 4, 1, 0) : comm.receive(kWorld, &word, 4, 0, 0));
    EXPECT_EQ(threads(), before + 2);
  });
}

}  // namespace
}  // namespace keepstep::comm
