// Hydration of tensors on a device, through the real CudaCopy over a driver without a GPU (tests/fake_cuda): touching
// its memory directly kills the process.
#include "state/device/cuda_copy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/checksum.h"
#include "state/hydration_testing.h"
#include "state/tensor_space.h"

namespace keepstep::state {
namespace {

using namespace testing;

// The fake's own calls, from the same loaded library as CudaCopy's.
class Fake {
 public:
  template <typename Function>
  static Function* call(const char* name) {
    static void* library = dlopen(KEEPSTEP_FAKE_CUDA, RTLD_NOW);
    return reinterpret_cast<Function*>(dlsym(library, name));
  }
  static void* allocate(int device, const std::vector<uint8_t>& bytes) {
    return call<void*(int, const void*, size_t)>("fake_cuda_allocate")(device, bytes.data(), bytes.size());
  }
  static std::vector<uint8_t> look(const void* address, size_t bytes) {
    const auto* there = static_cast<const uint8_t*>(call<const void*(const void*)>("fake_cuda_look")(address));
    return {there, there + bytes};
  }
  static void fail_from(int copy) { call<void(int)>("fake_cuda_fail_from")(copy); }
  static int live() { return call<int()>("fake_cuda_live")(); }
  static int contexts(int device) { return call<int(int)>("fake_cuda_contexts")(device); }
  static int in_flight_most() { return call<int()>("fake_cuda_in_flight_most")(); }
  static int depth() { return call<int()>("fake_cuda_current_depth")(); }
};

// Tensors of which every third is in main memory and the others are on the fake's two devices.
class DeviceTensors {
 public:
  DeviceTensors(const std::vector<uint64_t>& sizes, uint64_t seed) : host_(sizes, seed), sizes_(sizes) {
    for (size_t entry = 0; entry < sizes.size(); ++entry) {
      const int device = static_cast<int>(entry % 3) - 1;
      if (device == kMainMemory || sizes[entry] == 0) {
        regions_.push_back({host_[entry].data(), sizes[entry]});
      } else {
        regions_.push_back({Fake::allocate(device, host_[entry]), sizes[entry], device});
      }
    }
  }
  const std::vector<Region>& regions() const { return regions_; }
  // Their current contents, wherever they are.
  std::vector<uint8_t> bytes(size_t entry) {
    return regions_[entry].device == kMainMemory ? host_[entry] : Fake::look(regions_[entry].data, sizes_[entry]);
  }
  bool holds(Tensors& expected) {
    for (size_t entry = 0; entry < sizes_.size(); ++entry) {
      if (bytes(entry) != expected[entry]) {
        return false;
      }
    }
    return true;
  }

 private:
  Tensors host_;
  std::vector<uint64_t> sizes_;
  std::vector<Region> regions_;
};

std::vector<uint64_t> mixed_sizes() {
  std::vector<uint64_t> sizes = {3'000'000, 700'001, 0, 65'536, 65'537, 4};
  for (int i = 0; i < 300; ++i) {
    sizes.push_back(uint64_t(i) * 7 % 513);
  }
  sizes.insert(sizes.end(), {1, 1'000'000, 131'072});
  return sizes;
}

Process device_source(const SharedRegion& region, uint64_t seed) {
  return Process([&region, seed] {
    CudaCopy copy(KEEPSTEP_FAKE_CUDA);
    DeviceTensors tensors(mixed_sizes(), seed);
    Source source(region.data(), copy, nullptr);
    if (!source.publish(kIdentity, kVersion, "{}", tensors.regions()).ok()) {
      return 1;
    }
    while (true) {
      pause();
    }
  });
}

TEST(CudaCopy, a_newcomers_device_tensors_get_their_peers_bytes) {
  std::vector<SharedRegion> regions(2);
  const Process one = device_source(regions[0], 1);
  const Process other = device_source(regions[1], 1);
  {
    CudaCopy copy(KEEPSTEP_FAKE_CUDA);
    DeviceTensors tensors(mixed_sizes(), 2);
    Tensors expected(mixed_sizes(), 1);
    ASSERT_FALSE(tensors.holds(expected));
    Puller puller(data_of(regions), 9, copy, nullptr);
    const StatusOr<Pulled> pulled = puller.pull(kIdentity, kVersion, tensors.regions(), false);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_EQ(pulled->bytes, sum_of(mixed_sizes()));
    EXPECT_EQ(pulled->chunks_repeated, 0u);
    EXPECT_TRUE(tensors.holds(expected));
    EXPECT_GT(Fake::in_flight_most(), 1) << "copies are meant to overlap";
    EXPECT_EQ(Fake::depth(), 0) << "the caller's context must come back";
    EXPECT_EQ(Fake::contexts(0), 1);
  }
  EXPECT_EQ(Fake::live(), 0) << "streams, events or pinned memory were left behind";
  EXPECT_EQ(Fake::contexts(0), 0);
  EXPECT_EQ(Fake::contexts(1), 0);
}

TEST(CudaCopy, tensors_that_are_equal_already_are_not_moved) {
  std::vector<SharedRegion> regions(1);
  const Process source = device_source(regions[0], 1);
  CudaCopy copy(KEEPSTEP_FAKE_CUDA);
  DeviceTensors tensors(mixed_sizes(), 1);
  Puller puller(data_of(regions), 9, copy, nullptr);
  const StatusOr<Pulled> pulled = puller.pull(kIdentity, kVersion, tensors.regions(), true);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->bytes, 0u);
}

TEST(CudaCopy, a_host_source_fills_a_device) {
  std::vector<SharedRegion> regions(1);
  const Process source = source_process(regions[0], mixed_sizes());
  CudaCopy copy(KEEPSTEP_FAKE_CUDA);
  DeviceTensors tensors(mixed_sizes(), 2);
  Tensors expected(mixed_sizes(), 1);
  Puller puller(data_of(regions), 9, copy, nullptr);
  const StatusOr<Pulled> pulled = puller.pull(kIdentity, kVersion, tensors.regions(), false);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_TRUE(tensors.holds(expected));
}

TEST(CudaCopy, checksums_of_a_device_are_those_of_the_bytes_at_every_offset) {
  CudaCopy copy(KEEPSTEP_FAKE_CUDA);
  DeviceTensors tensors(mixed_sizes(), 5);
  const TensorSpace space = TensorSpace::create(tensors.regions()).value();
  ASSERT_TRUE(space.open_devices(copy).ok());
  std::vector<uint8_t> all;
  for (size_t entry = 0; entry < space.entries(); ++entry) {
    const std::vector<uint8_t> bytes = tensors.bytes(entry);
    all.insert(all.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(space.digest(copy, entry, [] { return false; }), checksum(bytes.data(), bytes.size()));
  }
  for (uint64_t offset = 0; offset < all.size(); offset += 99'991) {
    const uint64_t bytes = std::min<uint64_t>(all.size() - offset, 262'144);
    std::vector<std::byte> host(bytes);
    EXPECT_EQ(space.read(copy, offset, bytes, host.data()), checksum(all.data() + offset, bytes));
    EXPECT_EQ(std::memcmp(host.data(), all.data() + offset, bytes), 0);
  }
}

TEST(CudaCopy, a_copy_that_fails_gives_a_checksum_that_nobody_takes_for_good) {
  CudaCopy copy(KEEPSTEP_FAKE_CUDA);
  const std::vector<uint8_t> content(200'000, 7);
  std::vector<Region> regions = {{Fake::allocate(0, content), content.size(), 0}};
  const TensorSpace space = TensorSpace::create(regions).value();
  ASSERT_TRUE(space.open_devices(copy).ok());
  std::vector<std::byte> host(content.size());
  const uint64_t right = checksum(content.data(), content.size());
  for (int copy_number = 1; copy_number <= 4; ++copy_number) {
    Fake::fail_from(copy_number);
    EXPECT_NE(space.read(copy, 0, host.size(), host.data()), right);
    Fake::fail_from(copy_number);
    EXPECT_NE(space.write(copy, 0, host.size(), reinterpret_cast<const std::byte*>(content.data())), right);
    Fake::fail_from(copy_number);
    EXPECT_NE(space.digest(copy, 0, [] { return false; }), right);
  }
  Fake::fail_from(0);
  EXPECT_EQ(space.read(copy, 0, host.size(), host.data()), right);
}

TEST(CudaCopy, a_pull_onto_a_device_that_fails_ends_with_data_loss) {
  std::vector<SharedRegion> regions(1);
  const Process source = source_process(regions[0], {500'000, 500'000});
  CudaCopy copy(KEEPSTEP_FAKE_CUDA);
  std::vector<Region> targets;
  for (int entry = 0; entry < 2; ++entry) {
    targets.push_back({Fake::allocate(entry, std::vector<uint8_t>(500'000)), 500'000, entry});
  }
  Fake::fail_from(5);
  Puller puller(data_of(regions), 9, copy, nullptr);
  const StatusOr<Pulled> pulled = puller.pull(kIdentity, kVersion, targets, false);
  Fake::fail_from(0);
  EXPECT_EQ(pulled.status().code(), absl::StatusCode::kDataLoss) << pulled.status();
}

TEST(CudaCopy, what_cannot_be_copied_is_said_before_anything_moves) {
  SharedRegion region;
  CudaCopy nowhere("libno_such_driver.so.1");
  Source source(region.data(), nowhere, nullptr);
  const std::vector<Region> on_device = {{&region, 64, 0}};
  const Status published = source.publish(kIdentity, kVersion, "{}", on_device);
  EXPECT_EQ(published.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(published.message().find("libno_such_driver.so.1"), std::string::npos) << published;

  CudaCopy fake(KEEPSTEP_FAKE_CUDA);
  EXPECT_EQ(fake.open(7).code(), absl::StatusCode::kFailedPrecondition);
  HostCopy host;
  EXPECT_EQ(host.open(0).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace keepstep::state
