// Pulling the state of a peer while peers die, lie, withdraw, or are interrupted.
#include <gmock/gmock.h>

#include <thread>

#include "base/clock.h"
#include "state/channel.h"
#include "state/hydration.h"
#include "state/hydration_testing.h"

namespace keepstep::state {
namespace {

using ::testing::AllOf;
using testing::data_of;
using testing::expect_all;
using ::testing::HasSubstr;
using testing::HookedCopy;
using testing::Hydrated;
using testing::kIdentity;
using testing::kVersion;
using testing::model_sizes;
using testing::Process;
using testing::SharedRegion;
using testing::source_process;
using testing::sum_of;
using testing::Tensors;

constexpr int64_t kSoonNs = 200'000'000;  // generous: two cores, perhaps a sanitizer

TEST(HydrationFaults, a_byte_flipped_in_the_shared_slot_is_found_and_asked_for_again) {
  HookedCopy flips_once;
  flips_once.after = [](std::byte* slot, size_t bytes, int number) {
    if (number == 5) {
      slot[bytes / 2] ^= std::byte{4};
    }
  };
  Hydrated peers(1);
  peers.start(0, {.copy = &flips_once});
  EXPECT_EQ(peers.pull_all().chunks_repeated, 1u);
}

TEST(HydrationFaults, a_byte_flipped_on_its_way_into_the_tensor_is_found_and_asked_for_again) {
  class FlipsOneWrite final : public DeviceCopy {
   public:
    void read(void* to, const void* device, size_t bytes) override { std::memcpy(to, device, bytes); }
    void write(void* device, const void* from, size_t bytes) override {
      std::memcpy(device, from, bytes);
      if (++writes_ == 7) {
        static_cast<std::byte*>(device)[bytes - 1] ^= std::byte{1};
      }
    }

   private:
    std::atomic<int> writes_{0};
  };
  FlipsOneWrite copy;
  Hydrated peers(2);
  peers.start_all();
  peers.copy = &copy;
  EXPECT_EQ(peers.pull_all().chunks_repeated, 1u);
}

TEST(HydrationFaults, chunks_of_a_source_with_bad_memory_come_from_another) {
  HookedCopy flips;
  flips.after = [](std::byte* slot, size_t, int) { slot[0] ^= std::byte{1}; };
  Hydrated peers(2);
  peers.start(0, {.copy = &flips});
  peers.start(1);
  const Pulled pulled = peers.pull_all();
  EXPECT_EQ(pulled.bytes_by_source, (std::vector<uint64_t>{0, sum_of(peers.sizes)}));
  EXPECT_GT(pulled.chunks_repeated, 3u);
}

TEST(HydrationFaults, a_chunk_that_stays_bad_is_named) {
  HookedCopy flips;
  flips.after = [](std::byte* slot, size_t, int) { slot[0] ^= std::byte{1}; };
  Hydrated peers(1, {8, 100'000});
  peers.start(0, {.copy = &flips});
  const Status status = peers.pull().status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("entries 0 to 1"), HasSubstr("3 times")));
}

TEST(HydrationFaults, a_source_killed_in_mid_transfer_is_replaced_by_the_others) {
  HookedCopy dies;
  dies.before = [](int number) {
    if (number == 4) {
      kill(getpid(), SIGKILL);
    }
  };
  Hydrated peers(3);
  peers.start(0);
  peers.start(1, {.copy = &dies});
  peers.start(2);
  const Pulled pulled = peers.pull_all();
  EXPECT_EQ(pulled.bytes, sum_of(peers.sizes));
  EXPECT_GT(pulled.chunks_repeated, 0u);
  EXPECT_LT(pulled.bytes_by_source.at(1), pulled.bytes_by_source.at(0));
}

TEST(HydrationFaults, when_all_sources_are_dead_the_error_says_so_of_each) {
  HookedCopy dies;
  dies.before = [](int) { kill(getpid(), SIGKILL); };
  Hydrated peers(2);
  peers.start(0, {.copy = &dies});
  peers.start(1, {.copy = &dies});
  const Status status = peers.pull().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("source 0 did not answer"), HasSubstr("source 1 did not answer")));
}

TEST(HydrationFaults, a_source_that_withdraws_in_mid_transfer_is_replaced_at_once) {
  Hydrated peers(2);
  peers.start(0);
  const Process leaves([&] {
    std::atomic<uint32_t> reads{0};
    HookedCopy counts;
    counts.before = [&](int number) {
      reads.store(static_cast<uint32_t>(number));
      futex_wake_all(reads);
    };
    Tensors tensors(peers.sizes, 1);
    Source source(peers.regions[1].data(), counts, nullptr);
    if (!source.publish(kIdentity, kVersion, "{}", tensors.regions()).ok()) {
      return 1;
    }
    for (uint32_t seen = 0; (seen = reads.load()) < 6;) {
      futex_wait(reads, seen);
    }
    source.stop();
    tensors[0].assign(peers.sizes[0], 0);  // from here on its state may change
    while (true) {
      pause();
    }
  });
  const int64_t start_ns = monotonic_ns();
  peers.pull_all();
  EXPECT_LT(monotonic_ns() - start_ns, 10 * kSoonNs);
}

TEST(HydrationFaults, an_interruption_ends_the_wait_for_a_publication) {
  std::atomic<uint32_t> interrupted{0};
  std::vector<SharedRegion> regions(2);
  HostCopy host;
  Tensors mine({8}, 99);
  Puller puller(data_of(regions), 0, host, &interrupted);
  int64_t set_ns = 0;
  std::thread agent([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets the pull begin; any moment proves the same
    set_ns = monotonic_ns();
    interrupted.store(1);
  });
  EXPECT_TRUE(absl::IsAborted(puller.pull(kIdentity, kVersion, mine.regions(), false).status()));
  const int64_t end_ns = monotonic_ns();
  agent.join();
  EXPECT_LT(end_ns - set_ns, kSoonNs);
  EXPECT_TRUE(absl::IsAborted(puller.manifest(kIdentity).status()));
}

TEST(HydrationFaults, an_interruption_ends_a_transfer_from_a_source_that_hangs) {
  const SharedRegion words(4096);
  std::atomic<uint32_t>& interrupted = words.word(0);
  HookedCopy hangs;
  int64_t set_ns = 0;
  hangs.before = [&](int number) {
    if (number == 3) {
      interrupted.store(1);
      while (true) {
        pause();
      }
    }
  };
  Hydrated peers(1);
  peers.start(0, {.copy = &hangs});
  peers.interrupted = &interrupted;
  std::thread watch([&] {
    while (interrupted.load() == 0) {
      futex_wait(interrupted, 0, 1'000'000);
    }
    set_ns = monotonic_ns();
  });
  EXPECT_TRUE(absl::IsAborted(peers.pull().status()));
  const int64_t end_ns = monotonic_ns();
  watch.join();
  EXPECT_LT(end_ns - set_ns, kSoonNs);
}

TEST(HydrationFaults, an_interrupted_source_aborts_its_targets_too) {
  const SharedRegion words(4096);
  HookedCopy interrupts;
  interrupts.before = [&](int number) { words.word(0).store(number >= 3 ? 1 : 0); };
  Hydrated peers(1);
  peers.start(0, {.interrupted = &words.word(0), .copy = &interrupts});
  const Status status = peers.pull().status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST(HydrationFaults, sizes_that_differ_are_refused_by_the_number_of_the_entry) {
  std::vector<SharedRegion> regions(1);
  const Process source = source_process(regions[0], {8, 16, 32});
  HostCopy host;
  const auto pull = [&](const std::vector<uint64_t>& sizes, bool compare) {
    Tensors mine(sizes, 99);
    Puller puller(data_of(regions), 0, host, nullptr);
    const Status status = puller.pull(kIdentity, kVersion, mine.regions(), compare).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  for (const bool compare : {false, true}) {
    EXPECT_THAT(pull({8, 20, 28}, compare), HasSubstr("entry 1 has 20 bytes here and 16 bytes at the source"));
    EXPECT_THAT(pull({8, 16}, compare), HasSubstr("entry 2 exists on one side only"));
    EXPECT_THAT(pull({8, 16, 32, 4}, compare), HasSubstr("entry 3 exists on one side only"));
  }
}

TEST(HydrationFaults, another_version_and_a_newer_identity_are_not_pulled) {
  Hydrated peers(1, {8});
  peers.start(0);
  const Status other_version = peers.pull(false, kVersion + 1).status();
  EXPECT_TRUE(absl::IsDataLoss(other_version));
  EXPECT_THAT(other_version.message(), HasSubstr("published version 118, not 119"));
  const Status older = peers.pull(false, kVersion, {2, 9}).status();
  EXPECT_TRUE(absl::IsDataLoss(older));
  EXPECT_THAT(older.message(), HasSubstr("published generation 7 of term 3 already"));
  EXPECT_TRUE(absl::IsDataLoss(Puller(data_of(peers.regions), 0, peers.host, nullptr).manifest({2, 9}).status()));
  EXPECT_EQ(peers.mine, Tensors({8}, 99));
}

TEST(HydrationFaults, without_sources_there_is_an_error) {
  HostCopy host;
  Tensors mine({8}, 99);
  Puller puller({}, 0, host, nullptr);
  EXPECT_TRUE(absl::IsDataLoss(puller.pull(kIdentity, kVersion, mine.regions(), false).status()));
  EXPECT_TRUE(absl::IsDataLoss(puller.manifest(kIdentity).status()));
}

// Sends requests as a stranger would, by writing into the region.
class Stranger {
 public:
  explicit Stranger(const SharedRegion& region) : board_(board_at(region.data())) {}

  ReplyCode ask(uint64_t identity, uint64_t version, uint32_t kind, uint64_t offset, uint64_t bytes,
                uint32_t ahead = 1) {
    Channel& channel = board_.channels[kChannels - 1];
    const uint32_t number = channel.answered.load() + ahead;
    Slot& slot = channel.slots[number % kSlots];
    slot.identity.store(identity);
    slot.version.store(version);
    slot.kind.store(kind);
    slot.offset.store(offset);
    slot.bytes.store(bytes);
    channel.asked.store(number);
    board_.header.bell.fetch_add(1);
    futex_wake_all(board_.header.bell);
    for (uint32_t seen = 0; (seen = channel.answered.load()) != number;) {
      futex_wait(channel.answered, seen, kNapNs);
    }
    return static_cast<ReplyCode>(slot.code.load());
  }

 private:
  Board& board_;
};

TEST(HydrationFaults, requests_of_strangers_are_refused_and_the_source_goes_on) {
  std::vector<SharedRegion> regions(1);
  const std::vector<uint64_t> sizes = {100, 600'000};
  const Process source = source_process(regions[0], sizes, {.manifest = "0123456789"});
  HostCopy host;
  Tensors mine(sizes, 99);
  Puller puller(data_of(regions), 0, host, nullptr);
  ASSERT_TRUE(puller.manifest(kIdentity).ok());

  Stranger stranger(regions[0]);
  const uint64_t id = pack(kIdentity);
  constexpr uint32_t kManifest = 1, kSizes = 2, kDigests = 3, kData = 4;
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 0, 100), ReplyCode::kOk);
  EXPECT_EQ(stranger.ask(id + 1, kVersion, kData, 0, 100), ReplyCode::kWrongIdentity);
  EXPECT_EQ(stranger.ask(id - 1, kVersion, kManifest, 0, 10), ReplyCode::kWrongIdentity);
  EXPECT_EQ(stranger.ask(id, kVersion + 1, kData, 0, 100), ReplyCode::kWrongIdentity);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 600'000, 101), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 0, kSlotBytes + 1), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, kHuge, 2), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 2, kHuge), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kManifest, 0, 11), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kSizes, 1, 2), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kSizes, 0, kHuge / 8 + 1), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kDigests, 2, 1), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, 0, 0, 0), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, 77, 0, 8), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 0, 100, 1'000'000), ReplyCode::kMalformed);
  EXPECT_EQ(stranger.ask(id, kVersion, kData, 0, 100, 0x9000'0000), ReplyCode::kMalformed);

  ASSERT_TRUE(puller.pull(kIdentity, kVersion, mine.regions(), false).ok());
  EXPECT_EQ(mine, Tensors(sizes, 1));
}

TEST(HydrationFaults, the_next_publication_frees_the_channels_of_dead_targets) {
  const std::vector<uint64_t> sizes = model_sizes();
  const SharedRegion region;
  HostCopy host;
  Tensors theirs(sizes, 1);
  Source source(region.data(), host, nullptr);
  ASSERT_TRUE(source.publish(kIdentity, kVersion, "{}", theirs.regions()).ok());
  for (Channel& channel : board_at(region.data()).channels) {
    channel.owner.store(uint64_t{1} << 32 | 5);
    channel.asked.store(2);
  }
  ASSERT_TRUE(source.publish({3, 8}, kVersion, "{}", theirs.regions()).ok());
  Tensors mine(sizes, 99);
  Puller puller({{.region = region.data()}}, 0, host, nullptr);
  ASSERT_TRUE(puller.pull({3, 8}, kVersion, mine.regions(), false).ok());
  EXPECT_EQ(mine, theirs);
}

TEST(HydrationFaults, a_dead_source_whose_channels_are_all_taken_is_replaced) {
  Hydrated peers(2);
  peers.start_all();
  Puller puller(data_of(peers.regions), 0, peers.host, nullptr);
  ASSERT_TRUE(puller.pull(kIdentity, kVersion, peers.mine.regions(), false).ok());
  kill(peers.sources[0].pid(), SIGKILL);
  for (Channel& channel : board_at(peers.regions[0].data()).channels) {
    channel.owner.store(uint64_t{1} << 32 | 5);
  }
  peers.mine = Tensors(peers.sizes, 99);
  const Pulled pulled =
      expect_all(puller.pull(kIdentity, kVersion, peers.mine.regions(), false), peers.mine, peers.sizes);
  EXPECT_EQ(pulled.bytes_by_source, (std::vector<uint64_t>{0, sum_of(peers.sizes)}));
}

TEST(HydrationFaults, what_cannot_be_published_is_refused) {
  const SharedRegion region;
  HostCopy host;
  std::atomic<uint32_t> interrupted{0};
  Source source(region.data(), host, &interrupted);
  EXPECT_TRUE(absl::IsInvalidArgument(source.publish(kIdentity, 1, std::string(kMaxManifestBytes + 1, ' '), {})));
  const Status no_memory = source.publish(kIdentity, 1, "{}", {Region{}, Region{nullptr, 4}});
  EXPECT_TRUE(absl::IsInvalidArgument(no_memory));
  EXPECT_THAT(no_memory.message(), HasSubstr("entry 1"));
  interrupted.store(1);
  EXPECT_TRUE(absl::IsAborted(source.publish(kIdentity, 1, "{}", {})));
  source.stop();
}

}  // namespace
}  // namespace keepstep::state
