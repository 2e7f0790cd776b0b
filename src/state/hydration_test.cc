// Pulling the state of a peer when nothing goes wrong. For faults see hydration_faults_test.cc.
#include "state/hydration.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "state/channel.h"
#include "state/hydration_testing.h"

namespace keepstep::state {
namespace {

using testing::data_of;
using testing::expect_all;
using testing::Hydrated;
using testing::kIdentity;
using testing::kVersion;
using testing::model_sizes;
using testing::Process;
using testing::SharedRegion;
using testing::source_process;
using testing::sum_of;
using testing::Tensors;

uint32_t requests_answered(const SharedRegion& region) {
  uint32_t sum = 0;
  for (const Channel& channel : board_at(region.data()).channels) {
    sum += channel.answered.load();
  }
  return sum;
}

class FromSources : public ::testing::TestWithParam<int> {};

TEST_P(FromSources, every_byte_arrives_and_each_source_gives_its_share) {
  Hydrated peers(GetParam());
  peers.start_all();
  const Pulled pulled = peers.pull_all();
  EXPECT_EQ(pulled.bytes, sum_of(peers.sizes));
  EXPECT_EQ(pulled.bytes_skipped, 0u);
  EXPECT_EQ(pulled.chunks_repeated, 0u);
  EXPECT_GT(pulled.duration_ns, 0);
  const auto [least, most] = std::minmax_element(pulled.bytes_by_source.begin(), pulled.bytes_by_source.end());
  EXPECT_LE(*most - *least, kSlotBytes);
}

INSTANTIATE_TEST_SUITE_P(Hydration, FromSources, ::testing::Values(1, 2, 3));

TEST(Hydration, more_targets_than_channels_all_get_everything) {
  Hydrated peers(2);
  peers.start_all();
  std::vector<Process> targets;
  for (uint32_t self = 0; self < 2 * kChannels + 1; ++self) {
    targets.emplace_back([&peers, self] {
      Tensors mine(peers.sizes, 100 + self);
      Puller puller(data_of(peers.regions), self, peers.host, nullptr);
      const StatusOr<Pulled> pulled = puller.pull(kIdentity, kVersion, mine.regions(), false);
      return pulled.ok() && mine == Tensors(peers.sizes, 1) ? 0 : 1;
    });
  }
  for (Process& target : targets) {
    EXPECT_EQ(target.wait(), 0);
  }
  for (const Channel& channel : board_at(peers.regions[0].data()).channels) {
    EXPECT_EQ(channel.owner.load(), 0u) << "a channel was not given back";
  }
}

TEST(Hydration, compare_pulls_only_entries_that_differ) {
  Hydrated peers(2);
  peers.start_all();
  peers.mine = Tensors(peers.sizes, 1);
  peers.mine[0][999'999] ^= 1;
  peers.mine[5][0] ^= 1;
  peers.mine[6][17] ^= 1;
  const Pulled pulled = peers.pull_all(true);
  EXPECT_EQ(pulled.bytes, peers.sizes[0] + peers.sizes[5] + peers.sizes[6]);
  EXPECT_EQ(pulled.bytes_skipped, sum_of(peers.sizes) - pulled.bytes);
}

TEST(Hydration, compare_of_equal_state_pulls_nothing) {
  Hydrated peers(1);
  peers.start_all();
  peers.mine = Tensors(peers.sizes, 1);
  const Pulled pulled = peers.pull_all(true);
  EXPECT_EQ(pulled.bytes, 0u);
  EXPECT_EQ(pulled.bytes_skipped, sum_of(peers.sizes));
}

TEST(Hydration, thousands_of_tiny_entries_share_one_request) {
  std::vector<uint64_t> sizes;
  for (uint64_t entry = 0; entry < 20'000; ++entry) {
    sizes.push_back(entry % 10);
  }
  Hydrated peers(1, sizes);
  peers.start_all();
  peers.pull_all();
  EXPECT_EQ(requests_answered(peers.regions[0]), 1u);
}

TEST(Hydration, entries_without_bytes_need_no_memory) {
  Hydrated peers(2, {0, 5, 0, 0, 300'000, 0});
  peers.start_all();
  for (const bool compare : {false, true}) {
    Tensors mine(peers.sizes, 99);
    std::vector<Region> targets = mine.regions();
    targets[0].data = nullptr;
    Puller puller(data_of(peers.regions), 0, peers.host, nullptr);
    expect_all(puller.pull(kIdentity, kVersion, targets, compare), mine, peers.sizes);
  }
}

TEST(Hydration, a_state_without_bytes_is_checked_all_the_same) {
  std::vector<SharedRegion> regions(1);
  const Process source = source_process(regions[0], {0, 0});
  HostCopy host;
  Puller puller(data_of(regions), 0, host, nullptr);
  EXPECT_TRUE(puller.pull(kIdentity, kVersion, {Region{}, Region{}}, false).ok());
  EXPECT_TRUE(puller.pull(kIdentity, kVersion, {Region{}, Region{}}, true).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(puller.pull(kIdentity, kVersion, {Region{}}, false).status()));
  EXPECT_TRUE(absl::IsDataLoss(puller.pull(kIdentity, kVersion + 1, {Region{}, Region{}}, false).status()));
}

TEST(Hydration, a_device_the_host_cannot_look_into_is_read_back) {
  class Opaque final : public DeviceCopy {
   public:
    void read(void* to, const void* device, size_t bytes) override { std::memcpy(to, device, bytes); }
    void write(void* device, const void* from, size_t bytes) override { std::memcpy(device, from, bytes); }
  };
  Opaque opaque;
  Hydrated peers(1);
  peers.copy = &opaque;
  peers.start(0, {.copy = &opaque});
  for (const bool compare : {false, true}) {
    peers.mine = Tensors(peers.sizes, 99);
    peers.pull_all(compare);
  }
}

TEST(Hydration, a_manifest_of_any_length_arrives_whole) {
  for (const size_t length : {size_t{0}, size_t{17}, kSlotBytes, 3 * kSlotBytes + 5}) {
    std::string text(length, 'x');
    for (size_t i = 0; i < length; ++i) {
      text[i] = static_cast<char>('a' + i * i % 23);
    }
    std::vector<SharedRegion> regions(2);
    const Process source = source_process(regions[1], {8}, {.manifest = text});
    HostCopy host;
    Puller puller(data_of(regions), 4, host, nullptr);
    const StatusOr<std::string> manifest = puller.manifest(kIdentity);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(*manifest, text);
  }
}

TEST(Hydration, a_target_waits_for_sources_that_publish_later) {
  const std::vector<uint64_t> sizes = model_sizes();
  std::vector<SharedRegion> regions(2);
  const SharedRegion gate(4096);
  std::vector<Process> sources;
  for (const SharedRegion& region : regions) {
    sources.emplace_back([&] {
      HostCopy host;
      Tensors tensors(sizes, 1);
      Source source(region.data(), host, nullptr);
      // An earlier generation first: its state must not be mistaken for the wanted one.
      Tensors old(sizes, 2);
      if (!source.publish({3, 6}, kVersion, "old", old.regions()).ok()) {
        return 1;
      }
      gate.word(1).fetch_add(1);
      futex_wake_all(gate.word(1));
      while (gate.word(0).load() == 0) {
        futex_wait(gate.word(0), 0);
      }
      if (!source.publish(kIdentity, kVersion, "new", tensors.regions()).ok()) {
        return 1;
      }
      while (true) {
        pause();
      }
    });
  }
  for (uint32_t seen = 0; (seen = gate.word(1).load()) < sources.size();) {
    futex_wait(gate.word(1), seen);
  }
  Tensors mine(sizes, 99);
  std::thread target([&] {
    HostCopy host;
    Puller puller(data_of(regions), 0, host, nullptr);
    EXPECT_EQ(puller.manifest(kIdentity).value_or("none"), "new");
    EXPECT_TRUE(puller.pull(kIdentity, kVersion, mine.regions(), false).ok());
  });
  gate.word(0).store(1);
  futex_wake_all(gate.word(0));
  target.join();
  EXPECT_EQ(mine, Tensors(sizes, 1));
}

TEST(Hydration, a_source_counts_the_bytes_it_gave_and_can_publish_again) {
  const std::vector<uint64_t> sizes = model_sizes();
  const SharedRegion region;
  HostCopy host;
  Source source(region.data(), host, nullptr);
  Tensors theirs(sizes, 1);
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    ASSERT_TRUE(source.publish({1, generation}, generation, "{}", theirs.regions()).ok());
    Tensors mine(sizes, 99);
    Puller puller({{.region = region.data()}}, 0, host, nullptr);
    ASSERT_TRUE(puller.pull({1, generation}, generation, mine.regions(), false).ok());
    EXPECT_EQ(mine, theirs);
    EXPECT_EQ(source.bytes_served(), generation * sum_of(sizes));
  }
}

}  // namespace
}  // namespace keepstep::state
