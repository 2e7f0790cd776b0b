// Copies of capsules over real messages: ranks on several "nodes" of this machine, threads, TCP over loopback.
#include "rank/shards/capsule_copies.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "comm/test_world.h"

namespace keepstep::rank {
namespace {

using comm::Communicator;
using comm::Mode;
using comm::Rank;
using comm::TestWorld;

constexpr size_t kMaxBytes = 100'000;

std::string capsule_of(Rank rank, brain::Version version) {
  return std::string(1000 * (rank + 1), static_cast<char>('a' + version % 26)) + std::to_string(rank);
}

TEST(CapsuleCopies, the_keeper_is_at_the_same_place_on_the_next_node) {
  EXPECT_TRUE(keepers_of({}).empty());
  EXPECT_TRUE(keepers_of({0, 0, 0}).empty());
  EXPECT_EQ(keepers_of({0, 0, 1, 1}), (std::vector<Rank>{2, 3, 0, 1}));
  EXPECT_EQ(keepers_of({7, 7, 7, 2, 5, 5}), (std::vector<Rank>{3, 3, 3, 4, 0, 1}));
  EXPECT_EQ(keepers_of({0, 1, 0, 1}), (std::vector<Rank>{1, 0, 3, 2}));
}

// Three nodes; each rank's copies survive from generation to generation, unless a test replaces them with new ones.
class Copies : public ::testing::Test {
 protected:
  static constexpr size_t kRanks = 5;
  const std::vector<uint32_t> nodes_{0, 0, 1, 1, 2};
  TestWorld world_{kRanks, comm::small_config(), nodes_};
  std::vector<std::unique_ptr<CapsuleCopies>> copies_ = fresh(kRanks);

  static std::vector<std::unique_ptr<CapsuleCopies>> fresh(size_t count) {
    std::vector<std::unique_ptr<CapsuleCopies>> result;
    for (size_t i = 0; i < count; ++i) {
      result.push_back(std::make_unique<CapsuleCopies>(kMaxBytes));
    }
    return result;
  }
  // A generation: each rank enters it, then calls `body`.
  void generation(const std::function<void(CapsuleCopies&, Communicator&, Rank)>& body) {
    world_.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
      copies_[self]->enter(comm, self, nodes_);
      body(*copies_[self], comm, self);
    });
    world_.begin_generation();
  }
  // The first generation, in which all steps up to `last` are copied.
  void steps_up_to(brain::Version last) {
    generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
      const auto shared = copies.share(0, true, std::nullopt);
      ASSERT_TRUE(shared.ok()) << shared.status();
      EXPECT_FALSE(shared->has_value());
      for (brain::Version version = 1; version <= last; ++version) {
        const Status copied = copies.copy(version, capsule_of(self, version));
        ASSERT_TRUE(copied.ok()) << copied;
      }
    });
  }
};

TEST_F(Copies, the_two_newest_versions_of_each_rank_lie_on_the_next_node) {
  steps_up_to(4);
  const std::vector<Rank> keepers = keepers_of(nodes_);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(copies_[keepers[rank]]->copy_of(rank, 4), capsule_of(rank, 4));
    EXPECT_EQ(copies_[keepers[rank]]->copy_of(rank, 3), capsule_of(rank, 3));
    EXPECT_FALSE(copies_[keepers[rank]]->copy_of(rank, 2).has_value());
  }
}

TEST_F(Copies, the_ranks_of_a_lost_node_get_their_capsules_back_and_keepers_what_was_lost_with_it) {
  steps_up_to(4);
  // Ranks 2 and 3 were one node; they start over with nothing.
  copies_[2] = std::make_unique<CapsuleCopies>(kMaxBytes);
  copies_[3] = std::make_unique<CapsuleCopies>(kMaxBytes);
  const brain::Version version = 3;  // step 4 is redone
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    const bool is_new = self == 2 || self == 3;
    const auto got = copies.share(version, true, is_new ? std::nullopt : std::optional(capsule_of(self, version)));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, is_new ? std::optional(capsule_of(self, version)) : std::nullopt);
  });
  const std::vector<Rank> keepers = keepers_of(nodes_);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(copies_[keepers[rank]]->copy_of(rank, version), capsule_of(rank, version)) << "rank " << rank;
  }
}

TEST_F(Copies, when_the_keepers_are_lost_too_nothing_comes_and_nobody_waits) {
  steps_up_to(2);
  for (const Rank lost : {2u, 3u, 4u}) {
    copies_[lost] = std::make_unique<CapsuleCopies>(kMaxBytes);
  }
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    const auto got = copies.share(2, true, self >= 2 ? std::nullopt : std::optional(capsule_of(self, 2)));
    ASSERT_TRUE(got.ok()) << got.status();
    // Rank 0 kept the capsule of rank 4, and rank 4 those of 2 and 3.
    EXPECT_EQ(got->has_value(), self == 4);
  });
}

TEST_F(Copies, who_takes_the_rank_of_a_keeper_that_died_has_what_it_kept) {
  std::vector<Fd> memory(kRanks);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    copies_[rank]->on_memory([&memory, rank](int fd) { memory[rank] = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); });
  }
  steps_up_to(2);
  // Rank 4 dies, and the node of ranks 2 and 3, whose capsules it keeps, is lost before anyone could send them again.
  for (const Rank lost : {2u, 3u, 4u}) {
    copies_[lost] = std::make_unique<CapsuleCopies>(kMaxBytes);
  }
  copies_[4]->inherit(*KeptCapsules::attach(std::move(memory[4]), kMaxBytes));
  for (int entry = 0; entry < 2; ++entry) {  // the first generation may not form
    generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
      const bool lost = self == 2 || self == 3;
      const auto got = copies.share(2, true, lost ? std::nullopt : std::optional(capsule_of(self, 2)));
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, lost ? std::optional(capsule_of(self, 2)) : std::nullopt);
    });
  }
}

TEST(KeptCapsules, have_two_versions_of_as_many_ranks_as_there_is_room_for) {
  KeptCapsules kept = *KeptCapsules::create(2, 100);
  for (brain::Version version = 1; version <= 5; ++version) {
    for (const Rank rank : {3u, 7u}) {
      const Status put = kept.put(rank, version, std::string(version, 'a' + static_cast<char>(rank)));
      ASSERT_TRUE(put.ok()) << put;
    }
  }
  EXPECT_EQ(kept.find(3, 5), "ddddd");
  EXPECT_EQ(kept.find(7, 4), "hhhh");
  EXPECT_FALSE(kept.find(3, 3).has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(kept.put(8, 6, "")));
  EXPECT_TRUE(absl::IsFailedPrecondition(kept.put(3, 6, std::string(101, 'x'))));
  // The memory's contents are not trusted.
  const KeptCapsules again = *KeptCapsules::attach(Fd(fcntl(kept.fd(), F_DUPFD_CLOEXEC, 0)), 100);
  EXPECT_EQ(again.room(), 2u);
  EXPECT_EQ(again.find(3, 5), "ddddd");
  EXPECT_FALSE(KeptCapsules::attach(Fd(fcntl(kept.fd(), F_DUPFD_CLOEXEC, 0)), 1 << 20).ok());
  kept.drop_unless([](Rank rank) { return rank == 7; });
  EXPECT_FALSE(again.find(3, 5).has_value());
  EXPECT_EQ(again.find(7, 5), "hhhhh");
}

TEST_F(Copies, in_another_world_a_new_rank_gets_that_of_the_lowest_that_has_one) {
  steps_up_to(2);
  for (const auto& copies : copies_) {
    copies->forget();  // kept by ranks that have since changed
  }
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    const bool is_new = self == 0 || self == 4;
    const auto got = copies.share(2, true, is_new ? std::nullopt : std::optional(capsule_of(self, 2)), true);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, is_new ? std::optional(capsule_of(1, 2)) : std::nullopt);
  });
  const std::vector<Rank> keepers = keepers_of(nodes_);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const Rank whose = rank == 0 || rank == 4 ? 1 : rank;
    EXPECT_EQ(copies_[keepers[rank]]->copy_of(rank, 2), capsule_of(whose, 2)) << "rank " << rank;
  }
}

TEST_F(Copies, ranks_without_per_rank_values_give_and_take_nothing) {
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    const auto got = copies.share(0, self == 1, std::nullopt);
    ASSERT_TRUE(got.ok()) << got.status();
    for (brain::Version version = 1; version <= 3; ++version) {
      // A rank still copies its capsule even if it has become empty.
      ASSERT_TRUE(copies.copy(version, version < 3 ? capsule_of(self, version) : "").ok());
    }
  });
  for (Rank rank = 0; rank < kRanks; ++rank) {
    for (const auto& copies : copies_) {
      EXPECT_EQ(copies->copy_of(rank, 3).has_value(), rank == 1 && copies == copies_[3]);
    }
  }
  EXPECT_EQ(copies_[3]->copy_of(1, 2), capsule_of(1, 2));
  EXPECT_EQ(copies_[3]->copy_of(1, 3), "");
}

TEST_F(Copies, an_interruption_ends_the_wait_and_what_was_kept_stays) {
  steps_up_to(2);
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    ASSERT_TRUE(copies.share(2, true, capsule_of(self, 2)).ok());
    if (self == 0) {  // never reaches its vote
      world_.await(kRanks - 1);
      world_.interrupt();
      return;
    }
    world_.signal();
    if (self == 2) {  // keeps rank 0's
      EXPECT_TRUE(absl::IsAborted(copies.copy(3, capsule_of(self, 3))));
    }
  });
  EXPECT_EQ(copies_[2]->copy_of(0, 2), capsule_of(0, 2));
  EXPECT_FALSE(copies_[2]->copy_of(0, 3).has_value());
}

TEST_F(Copies, a_capsule_of_another_version_is_no_capsule) {
  generation([&](CapsuleCopies& copies, Communicator&, Rank self) {
    ASSERT_TRUE(copies.share(0, true, std::nullopt).ok());
    const Status status = copies.copy(self == 4 ? 2 : 1, capsule_of(self, 1));
    // Rank 4 keeps the capsules of 2 and 3, rank 0 that of 4.
    EXPECT_EQ(absl::IsInternal(status), self == 4 || self == 0) << status;
  });
}

}  // namespace
}  // namespace keepstep::rank
