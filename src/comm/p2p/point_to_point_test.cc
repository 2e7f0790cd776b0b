#include "comm/p2p/point_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

TEST(PointToPoint, messages_of_every_size_arrive) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    TestWorld(2).run(mode, [](Communicator& comm, Rank self) {
      const size_t ring = small_config().ring_bytes;
      for (const size_t bytes : std::vector<size_t>{0, 1, 3, 1000, ring - 1, ring, ring + 1, 5 << 20}) {
        if (self == 0) {
          const Bytes data = pattern(bytes, 7);
          expect_done(comm, comm.send(kWorld, data.data(), bytes, 1, 0));
        } else {
          Bytes data(bytes);
          expect_done(comm, comm.receive(kWorld, data.data(), bytes, 0, 0));
          EXPECT_TRUE(data == pattern(bytes, 7)) << bytes;
        }
      }
    });
  }
}

TEST(PointToPoint, tags_may_be_received_in_any_order_and_messages_larger_than_the_ring_do_not_block) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    constexpr uint32_t kMessages = 100;  // more than there is room for offers
    const auto bytes_of = [](uint32_t tag) { return tag % 10 == 0 ? size_t{100'000} : size_t{tag}; };
    if (self == 0) {
      std::vector<Bytes> data;
      std::vector<OpId> ops;
      for (uint32_t tag = 0; tag < kMessages; ++tag) {
        data.push_back(pattern(bytes_of(tag), tag));
        ops.push_back(comm.send(kWorld, data.back().data(), data.back().size(), 1, tag));
      }
      for (const OpId op : ops) {
        expect_done(comm, op);
      }
      return;
    }
    for (uint32_t tag = kMessages; tag-- > 0;) {  // the last one first, each waited for
      Bytes data(bytes_of(tag));
      expect_done(comm, comm.receive(kWorld, data.data(), data.size(), 0, tag));
      EXPECT_TRUE(data == pattern(data.size(), tag)) << tag;
    }
  });
}

TEST(PointToPoint, messages_of_one_tag_keep_their_order) {
  TestWorld(2).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    std::vector<uint64_t> values(500);
    std::vector<OpId> ops;
    for (uint64_t i = 0; i < values.size(); ++i) {
      values[i] = self == 0 ? i : 0;
      ops.push_back(self == 0 ? comm.send(kWorld, &values[i], 8, 1, 3) : comm.receive(kWorld, &values[i], 8, 0, 3));
    }
    for (uint64_t i = 0; i < values.size(); ++i) {
      expect_done(comm, ops[i]);
      EXPECT_EQ(values[i], i);
    }
  });
}

TEST(PointToPoint, all_ranks_exchange_with_all_in_random_orders) {
  for (const Mode mode : {Mode::kProcesses, Mode::kThreads}) {
    TestWorld(4).run(mode, [](Communicator& comm, Rank self) {
      constexpr uint32_t kTags = 12;
      const auto bytes_of = [](Rank from, Rank to, uint32_t tag) {
        return size_t{(from * 31 + to * 17 + tag * 101) % 97} * (tag == 5 ? 3001 : 11);
      };
      std::vector<std::pair<Rank, uint32_t>> order;
      for (Rank peer = 0; peer < 4; ++peer) {  // itself included
        for (uint32_t tag = 0; tag < kTags; ++tag) {
          order.emplace_back(peer, tag);
        }
      }
      std::mt19937 random(41 + self);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Bytes> sent;
      std::vector<Bytes> received;
      std::vector<OpId> ops;
      for (const auto& [peer, tag] : order) {
        sent.push_back(pattern(bytes_of(self, peer, tag), self * 1000 + peer * 100 + tag));
        received.emplace_back(bytes_of(peer, self, tag));
      }
      std::vector<size_t> receive_order(order.size());
      std::iota(receive_order.begin(), receive_order.end(), 0);
      std::shuffle(receive_order.begin(), receive_order.end(), random);
      for (size_t i = 0; i < order.size(); ++i) {
        ops.push_back(comm.send(kWorld, sent[i].data(), sent[i].size(), order[i].first, order[i].second));
        const size_t j = receive_order[i];
        ops.push_back(comm.receive(kWorld, received[j].data(), received[j].size(), order[j].first, order[j].second));
      }
      for (const OpId op : ops) {
        expect_done(comm, op);
      }
      for (size_t i = 0; i < order.size(); ++i) {
        const auto [peer, tag] = order[i];
        EXPECT_TRUE(received[i] == pattern(received[i].size(), peer * 1000 + self * 100 + tag)) << peer << " " << tag;
      }
    });
  }
}

TEST(PointToPoint, goes_on_while_a_collective_waits) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    uint32_t word = 5;
    if (self == 0) {
      const OpId barrier = comm.barrier(kWorld);  // rank 1 enters only after the message
      expect_done(comm, comm.send(kWorld, &word, 4, 1, 0));
      expect_done(comm, barrier);
    } else {
      expect_done(comm, comm.receive(kWorld, &word, 4, 0, 0));
      expect_done(comm, comm.barrier(kWorld));
    }
  });
}

TEST(PointToPoint, waiting_for_a_message_never_waits_for_a_collective_called_before) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    uint32_t word = 5;
    if (self == 0) {
      std::vector<OpId> barriers;
      for (int i = 0; i < 3; ++i) {
        barriers.push_back(comm.barrier(kWorld));
      }
      expect_done(comm, comm.send(kWorld, &word, 4, 1, 0));
      expect_done(comm, comm.send(kWorld, &word, 4, 1, 1));  // rank 1 enters the barriers after this one
      for (const OpId op : barriers) {
        expect_done(comm, op);
      }
    } else {
      expect_done(comm, comm.receive(kWorld, &word, 4, 0, 0));
      expect_done(comm, comm.receive(kWorld, &word, 4, 0, 1));
      for (int i = 0; i < 3; ++i) {
        expect_done(comm, comm.barrier(kWorld));
      }
    }
  });
}

TEST(PointToPoint, groups_have_ranks_and_tags_of_their_own) {
  TestWorld(3).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const GroupId group = *comm.create_group({2, 1, 0}, "reversed");
    uint32_t word = self;
    if (self == 2) {
      uint32_t other = 77;
      const OpId in_world = comm.send(kWorld, &word, 4, 0, 1);
      const OpId in_group = comm.send(group, &other, 4, 2, 1);  // group rank 2 is rank 0
      expect_done(comm, in_world);
      expect_done(comm, in_group);
    } else if (self == 0) {
      expect_done(comm, comm.receive(group, &word, 4, 0, 1));
      EXPECT_EQ(word, 77U);
      expect_done(comm, comm.receive(kWorld, &word, 4, 2, 1));
      EXPECT_EQ(word, 2U);
    }
  });
}

TEST(PointToPoint, a_message_larger_than_the_buffer_fails_on_both_sides_and_the_next_one_arrives) {
  TestWorld(2).run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    Bytes data(100);
    const Completion misfit = finish(
        comm, self == 0 ? comm.send(kWorld, data.data(), 100, 1, 7) : comm.receive(kWorld, data.data(), 80, 0, 7));
    EXPECT_EQ(misfit.outcome, Outcome::kFailed);
    EXPECT_THAT(misfit.error, HasSubstr("the message has 100 bytes, the receiver's buffer 80"));
    EXPECT_THAT(misfit.error, HasSubstr(self == 0 ? "send to rank 1 (tag 7) in group world" : "receive from rank 0"));
    expect_done(comm, self == 0 ? comm.send(kWorld, data.data(), 60, 1, 7)  // shorter is fine
                                : comm.receive(kWorld, data.data(), 80, 0, 7));
  });
}

TEST(PointToPoint, a_timeout_says_what_was_missing) {
  TestWorld(2).run(Mode::kThreads, [](Communicator& comm, Rank self) {
    Bytes data(100);
    if (self == 1) {
      const Completion late = finish(comm, comm.receive(kWorld, data.data(), 100, 0, 1, 20'000'000));
      EXPECT_THAT(late.error, HasSubstr("receive from rank 0 (tag 1) in group world: nothing arrived within 0.02 s"));
      expect_done(comm, comm.receive(kWorld, data.data(), 100, 0, 2));  // the pair is still good
      expect_done(comm, comm.barrier(kWorld));
    } else {
      expect_done(comm, comm.send(kWorld, data.data(), 100, 1, 2));
      expect_done(comm, comm.barrier(kWorld));
      const Completion late = finish(comm, comm.send(kWorld, data.data(), 100, 1, 3, 20'000'000));
      EXPECT_THAT(late.error, HasSubstr("no receive was posted within 0.02 s"));
      const Completion next = finish(comm, comm.send(kWorld, data.data(), 100, 1, 4));
      EXPECT_THAT(next.error, HasSubstr("rank 0 gave up a transfer"));
    }
  });
}

TEST(PointToPoint, bad_arguments_fail_at_once) {
  TestWorld(1).run(Mode::kThreads, [](Communicator& comm, Rank) {
    EXPECT_THAT(finish(comm, comm.send(kWorld, nullptr, 0, 4, 0)).error, HasSubstr("rank 4 is not in group world"));
    EXPECT_THAT(finish(comm, comm.receive(9, nullptr, 0, 0, 0)).error, HasSubstr("group 9 is not known"));
    EXPECT_THAT(finish(comm, comm.send(kWorld, nullptr, 8, 0, 0)).error, HasSubstr("the buffer is null"));
  });
}

}  // namespace
}  // namespace keepstep::comm
