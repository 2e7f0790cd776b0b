#include "data/ring/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "data/ring/ring_extent.h"
#include "data/ring/ring_testing.h"

namespace keepstep::data {
namespace {

using testing::HasSubstr;

TEST(Ring, what_is_put_is_read_by_every_rank) {
  RingFixture ring({.round = 1, .ahead = 3, .behind = 1});
  auto first = ring.reader(0);
  auto second = ring.reader(0);
  RingWriter writer = ring.writer();
  ASSERT_TRUE(put(writer, 5000).ok());
  for (RingReader* reader : {first.get(), second.get()}) {
    const auto view = reader->view(0);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_TRUE(holds(**view, 5000));
    EXPECT_EQ((*view)->item().number, 0);
  }
}

TEST(Ring, an_item_that_is_not_published_is_not_there) {
  RingFixture ring({});
  auto reader = ring.reader(0);
  EXPECT_TRUE(absl::IsOutOfRange(reader->view(0).status()));
}

TEST(Ring, the_loader_waits_for_the_slowest_reader_and_for_no_dead_one) {
  RingFixture ring({.round = 1, .ahead = 2, .behind = 1});
  auto fast = ring.reader(0);
  const uint32_t slow = *ring.owner->join(0, 4711);
  RingWriter writer = ring.writer();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(put(writer, 100).ok());
  }
  ASSERT_TRUE(fast->move_to(4).ok());
  std::atomic<bool> done = false;
  std::thread blocked([&] {
    ASSERT_TRUE(put(writer, 100).ok());
    done = true;
  });
  EXPECT_FALSE(done);  // another reader still needs item 0
  EXPECT_TRUE(holds(**fast->view(3), 100));
  ring.owner->leave(slow);
  blocked.join();
  EXPECT_EQ(writer.head(), 5);
}

TEST(Ring, a_loader_that_waits_while_nobody_reads_goes_on_for_who_comes) {
  RingFixture ring({.round = 1, .ahead = 2, .behind = 1});
  const uint32_t dead = *ring.owner->join(0, 4711);
  RingWriter writer = ring.writer();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(put(writer, 100).ok());
  }
  ring.owner->leave(dead);
  const std::shared_ptr<RingMemory> memory = ring.memory();
  const uint32_t waits_with = memory->control().space.load();
  std::thread blocked([&] { ASSERT_TRUE(put(writer, 100).ok()); });
  auto reader = ring.reader(4);  // what is held for the dead one blocks item 4
  EXPECT_NE(memory->control().space.load(), waits_with);
  wait_for(*reader, 4);
  blocked.join();
}

TEST(Ring, a_view_that_is_held_longer_than_promised_never_changes) {
  RingFixture ring({.round = 1, .ahead = 1, .behind = 0});
  auto reader = ring.reader(0);
  RingWriter writer = ring.writer();
  std::vector<std::shared_ptr<RingView>> held;
  for (uint64_t number = 0; number < 20; ++number) {
    ASSERT_TRUE(put(writer, 9000).ok());
    held.push_back(*reader->view(number));
    ASSERT_TRUE(reader->move_to(number + 1).ok());
  }
  for (const auto& view : held) {
    EXPECT_TRUE(holds(*view, 9000)) << view->item().number;
  }
}

TEST(Ring, a_view_that_is_held_when_its_reader_leaves_never_changes) {
  RingFixture ring({.round = 1, .ahead = 0, .behind = 0});
  auto other = ring.reader(0);
  const uint32_t row = *ring.owner->join(0, 1);
  auto leaving = *RingReader::create(ring.memory(), row);
  RingWriter writer = ring.writer();
  ASSERT_TRUE(put(writer, 9000).ok());
  const auto view = *leaving->view(0);
  leaving.reset();
  ring.owner->leave(row);
  ASSERT_TRUE(other->move_to(1).ok());
  ASSERT_TRUE(put(writer, 9000).ok());
  EXPECT_TRUE(holds(*view, 9000));
}

TEST(Ring, what_a_rank_writes_into_its_batch_is_not_there_when_the_step_is_redone) {
  RingFixture ring({.behind = 1});
  auto reader = ring.reader(0);
  auto other = ring.reader(0);
  RingWriter writer = ring.writer();
  ASSERT_TRUE(put(writer, 9000).ok());
  const auto spoilt = *reader->view(0);
  std::memset(spoilt->data(), 0xee, spoilt->size());
  EXPECT_TRUE(holds(**reader->view(0), 9000));
  EXPECT_TRUE(holds(**other->view(0), 9000));
  EXPECT_FALSE(holds(*spoilt, 9000));
}

TEST(Ring, a_view_outlives_reader_and_ring) {
  std::shared_ptr<RingView> view;
  {
    RingFixture ring({});
    auto reader = ring.reader(0);
    RingWriter writer = ring.writer();
    ASSERT_TRUE(put(writer, 3000).ok());
    view = *reader->view(0);
  }
  EXPECT_TRUE(holds(*view, 3000));
}

TEST(Ring, half_an_item_of_a_dead_loader_is_no_item) {
  RingFixture ring({});
  auto reader = ring.reader(0);
  RingWriter first = ring.writer();
  ASSERT_TRUE(put(first, 5000).ok());
  EXPECT_FALSE(put_half(first, 5000).ok());
  EXPECT_EQ(reader->head(), 1);
  RingWriter second = ring.writer();
  ASSERT_EQ(second.head(), 1);
  EXPECT_EQ(second.last()->number, 0);
  ASSERT_TRUE(put(second, 6000).ok());
  EXPECT_TRUE(holds(**reader->view(0), 5000));
  EXPECT_TRUE(holds(**reader->view(1), 6000));
}

TEST(Ring, the_loaders_state_lies_beside_its_batch) {
  RingFixture ring({});
  auto reader = ring.reader(0);
  RingWriter writer = ring.writer();
  const std::string batch(100, 'b');
  const std::string state = "where I am";
  const RingItem item{.epoch = 3, .index = 9, .batch_bytes = 100, .state_bytes = state.size()};
  const std::vector<RingPiece> pieces = {{0, batch.data(), batch.size()},
                                         {state_offset(100), state.data(), state.size()}};
  ASSERT_TRUE(writer.put(item, pieces).ok());
  EXPECT_EQ(*reader->state(0), state);
  EXPECT_EQ(*ring.writer().last_state(), state);
  EXPECT_EQ(ring.writer().last()->epoch, 3);
  EXPECT_EQ(ring.writer().last()->index, 9);
  EXPECT_EQ(reader->item(0)->batch_bytes, 100);
}

TEST(Ring, a_batch_larger_than_the_limit_is_refused_with_both_sizes) {
  RingFixture ring({.limit_bytes = 10000});
  RingWriter writer = ring.writer();
  const Status status = put(writer, 20000);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit_bytes=10000"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("20480 bytes"));
  EXPECT_EQ(writer.head(), 0);
}

TEST(Ring, a_round_that_cannot_fit_the_limit_is_refused_instead_of_waiting_for_ever) {
  RingFixture ring({.round = 4, .ahead = 8, .behind = 4, .limit_bytes = 3 * 4096});
  auto reader = ring.reader(0);
  RingWriter writer = ring.writer();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(put(writer, 4096).ok());
  }
  EXPECT_THAT(std::string(put(writer, 4096).message()), HasSubstr("finds no room within limit_bytes=12288"));
  const std::string why = "why";
  const std::vector<RingPiece> pieces = {{0, why.data(), why.size()}};
  ASSERT_TRUE(
      writer.put({.kind = ItemKind::kError, .batch_bytes = why.size()}, pieces).ok());  // it has its own reserved room
  const auto said = *reader->view(3);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(said->data()), said->size()), why);
}

TEST(Ring, within_a_limit_the_loader_goes_on_as_ranks_do) {
  RingFixture ring({.round = 1, .ahead = 10, .behind = 1, .limit_bytes = 4 * 4096});
  auto reader = ring.reader(0);
  std::thread loader([&] {
    RingWriter writer = ring.writer();
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(put(writer, 100 + i % 2 * 5000).ok());
    }
  });
  for (uint64_t number = 0; number < 200; ++number) {
    wait_for(*reader, number);
    EXPECT_TRUE(holds(**reader->view(number), 100 + number % 2 * 5000));
    ASSERT_TRUE(reader->move_to(number + 1).ok());
  }
  loader.join();
}

TEST(Ring, what_nobody_needs_any_more_is_numbered_and_not_stored) {
  RingFixture ring({.round = 4, .ahead = 4, .behind = 0});
  auto reader = ring.reader(0);
  ASSERT_TRUE(reader->move_to(3).ok());  // others read items 0 to 2
  RingWriter writer = ring.writer();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(put(writer, 100).ok());
  }
  EXPECT_TRUE(absl::IsOutOfRange(reader->view(2).status()));
  EXPECT_TRUE(holds(**reader->view(3), 100));
}

TEST(Ring, who_comes_too_late_or_too_early_is_told) {
  RingFixture ring({.round = 1, .ahead = 2, .behind = 1}, 100);
  EXPECT_TRUE(absl::IsOutOfRange(ring.owner->join(99, 1).status()));
  EXPECT_TRUE(absl::IsOutOfRange(ring.owner->join(105, 1).status()));
  auto reader = ring.reader(100);
  RingWriter writer = ring.writer();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(put(writer, 100).ok());
  }
  ASSERT_TRUE(reader->move_to(104).ok());
  ASSERT_TRUE(put(writer, 100).ok());
  EXPECT_TRUE(absl::IsOutOfRange(ring.owner->join(102, 1).status()));
  EXPECT_TRUE(ring.owner->join(103, 1).ok());
  EXPECT_TRUE(absl::IsOutOfRange(reader->move_to(102)));
  EXPECT_TRUE(reader->move_to(103).ok());
}

TEST(Ring, slots_that_were_written_over_are_refused_and_not_followed) {
  RingFixture ring({});
  auto reader = ring.reader(0);
  RingWriter writer = ring.writer();
  ASSERT_TRUE(put(writer, 100).ok());
  const auto memory = ring.memory();
  RingSlot& slot = memory->slot(0);
  const RingSlot good = slot;
  const std::vector<void (*)(RingSlot&)> spoil = {
      [](RingSlot& s) { s.number = 7; },
      [](RingSlot& s) { s.kind = 99; },
      [](RingSlot& s) { s.offset = ~uint64_t{0}; },
      [](RingSlot& s) { s.offset = 1; },
      [](RingSlot& s) { s.batch_bytes = ~uint64_t{0}; },
      [](RingSlot& s) { s.state_bytes = ~uint64_t{0}; },
      [](RingSlot& s) { s.batch_bytes = kUnlimitedDataBytes + 1; },
  };
  for (const auto& each : spoil) {
    slot = good;
    each(slot);
    EXPECT_TRUE(absl::IsDataLoss(reader->view(0).status()));
    EXPECT_FALSE(reader->state(0).ok());
  }
}

TEST(Ring, a_memory_that_is_no_ring_is_refused) {
  auto memory = *SharedMemory::create("test", 8192);
  auto data = *SharedMemory::create("test", 8192);
  EXPECT_FALSE(RingMemory::attach(Fd(dup(memory.fd())), Fd(dup(data.fd()))).ok());
  RingFixture ring({});
  EXPECT_FALSE(RingMemory::attach(Fd(dup(ring.owner->control_fd())), Fd(memfd_create("open", 0))).ok());
  ring.memory()->control().slots = 60000;  // more than exist
  EXPECT_FALSE(RingMemory::attach(Fd(dup(ring.owner->control_fd())), Fd(dup(ring.owner->data_fd()))).ok());
}

TEST(Ring, sizes_that_make_no_ring_are_refused) {
  EXPECT_FALSE(RingOwner::create({.round = 0}, 0, 1).ok());
  EXPECT_FALSE(RingOwner::create({.round = 60000, .ahead = 60000}, 0, 1).ok());
  EXPECT_FALSE(RingOwner::create({.ahead = ~0U, .behind = ~0U}, 0, 1).ok());
  EXPECT_FALSE(RingOwner::create({.limit_bytes = ~uint64_t{0}}, 0, 1).ok());
}

}  // namespace
}  // namespace keepstep::data
