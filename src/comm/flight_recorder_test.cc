#include "comm/flight_recorder.h"

#include <gtest/gtest.h>

#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

TEST(FlightRecorder, tells_the_last_collectives_and_how_far_they_got) {
  TestWorld world(2);
  const auto comm = world.communicator(0);  // rank 1 comes for the first one only
  std::thread other([&] {
    const auto peer = world.communicator(1);
    expect_done(*peer, peer->barrier(kWorld));
  });
  expect_done(*comm, comm->barrier(kWorld));
  other.join();
  std::vector<float> data(100);
  const OpId waiting = comm->all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax);
  const OpId behind = comm->broadcast(kWorld, data.data(), 8, 0);
  while (comm->collectives_entered() < 2) {
    std::this_thread::yield();
  }
  world.interrupt();
  EXPECT_EQ(finish(*comm, waiting).outcome, Outcome::kInterrupted);
  EXPECT_EQ(finish(*comm, behind).outcome, Outcome::kInterrupted);

  const auto records = comm->recent();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].kind, "barrier");
  EXPECT_EQ(records[0].number, 1U);
  EXPECT_EQ(records[0].outcome, Outcome::kDone);
  EXPECT_EQ(records[1].kind, "all_reduce");
  EXPECT_EQ(records[1].bytes, 400U);
  EXPECT_EQ(records[1].type, "float32");
  EXPECT_EQ(records[1].reduction, "max");
  EXPECT_EQ(records[1].outcome, Outcome::kInterrupted);
  EXPECT_LE(records[1].queued_ns, records[1].started_ns);
  EXPECT_LE(records[1].started_ns, records[1].ended_ns);
  EXPECT_EQ(records[2].kind, "broadcast");
}

TEST(FlightRecorder, forgets_the_oldest) {
  FlightRecorder recorder;
  for (OpId op = 1; op <= kFlightRecords + 10; ++op) {
    recorder.queued(op, kWorld, {});
  }
  recorder.ended(3, Outcome::kDone);  // long forgotten
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), kFlightRecords);
  EXPECT_EQ(records.front().op, 11U);
  EXPECT_EQ(records.back().op, kFlightRecords + 10);
}

}  // namespace
}  // namespace keepstep::comm
