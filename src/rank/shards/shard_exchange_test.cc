// Shards of another sharding over real messages: ranks on several "nodes" of this machine, threads, TCP over loopback.
#include "rank/shards/shard_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "brain/reshard/strided_copy.h"
#include "comm/test_world.h"

namespace keepstep::rank {
namespace {

using brain::Box;
using brain::ShardEntry;
using comm::Communicator;
using comm::Mode;
using comm::Rank;
using comm::TestWorld;
using state::ShardManifest;

constexpr brain::Version kVersion = 118;

struct Tensor {
  std::string name;
  uint32_t rows = 0;
  uint32_t columns = 0;
};
// The element at (row, column): different from all others, so a misplaced one is noticed.
uint32_t value_of(const Tensor& tensor, uint64_t row, uint64_t column) {
  return static_cast<uint32_t>(std::hash<std::string>()(tensor.name) + row * 100'003 + column);
}

// The whole state, cut by rows and columns: rank r of rows * columns ranks has the part (r / columns, r % columns).
// Cuts are uneven, as torch makes them: a last part may be smaller, or empty.
struct Division {
  uint32_t rows = 1;
  uint32_t columns = 1;
  Rank world() const { return rows * columns; }
};

Box part(const Tensor& tensor, const Division& division, Rank rank) {
  const auto cut = [](uint64_t length, uint64_t parts, uint64_t index) {
    const uint64_t size = (length + parts - 1) / parts;
    const uint64_t begin = std::min(length, size * index);
    return std::pair(begin, std::min(length, begin + size) - begin);
  };
  const auto [row, rows] = cut(tensor.rows, division.rows, rank / division.columns);
  const auto [column, columns] = cut(tensor.columns, division.columns, rank % division.columns);
  return {{row, column}, {rows, columns}};
}

ShardManifest manifest_of(const std::vector<Tensor>& tensors, const Division& division, Rank rank) {
  ShardManifest manifest{kVersion, {}};
  for (const Tensor& tensor : tensors) {
    manifest.shards.push_back({tensor.name, "uint32", 4, {tensor.rows, tensor.columns}, part(tensor, division, rank)});
  }
  // Not divided: the same on all ranks.
  manifest.shards.push_back({"step", "uint32", 4, {}, {}});
  return manifest;
}

std::vector<uint32_t> state_of(const std::vector<Tensor>& tensors, const Division& division, Rank rank) {
  std::vector<uint32_t> values;
  for (const Tensor& tensor : tensors) {
    const Box box = part(tensor, division, rank);
    for (uint64_t row = box.offsets[0]; row < box.end(0); ++row) {
      for (uint64_t column = box.offsets[1]; column < box.end(1); ++column) {
        values.push_back(value_of(tensor, row, column));
      }
    }
  }
  values.push_back(4711);
  return values;
}

// The contents of each node's memory.
class Nodes {
 public:
  void put(uint32_t node, Rank shard, const std::vector<uint32_t>& values) {
    const uint64_t bytes = values.size() * sizeof(uint32_t);
    std::vector<std::byte>& memory = memory_[{node, shard}];
    memory.assign(state::ShardVault::memory_bytes(bytes, 4096), std::byte{0});
    state::ShardVault::initialize(memory.data(), shard, bytes, 4096);
    state::ShardVault vault = *state::ShardVault::open(memory.data(), memory.size());
    vault.begin(kVersion);
    std::memcpy(vault.data(kVersion).data(), values.data(), bytes);
    const std::string text = "of shard " + std::to_string(shard);
    ASSERT_TRUE(vault.put_text(kVersion, text).ok());
    vault.finish(
        {kVersion, text.size(), state::vault_checksum(vault.data(kVersion)), checksum(text.data(), text.size())});
  }
  StatusOr<state::ShardVault> of(uint32_t node, Rank shard) {
    const auto found = memory_.find({node, shard});
    if (found == memory_.end()) {
      return absl::NotFoundError("not here");
    }
    return state::ShardVault::open(found->second.data(), found->second.size());
  }
  std::vector<Rank> shards_on(uint32_t node) const {
    std::vector<Rank> shards;
    for (const auto& [key, memory] : memory_) {
      if (key.first == node) {
        shards.push_back(key.second);
      }
    }
    return shards;
  }
  void spoil(uint32_t node, Rank shard) { of(node, shard)->data(kVersion)[0] ^= std::byte{1}; }

 private:
  std::map<std::pair<uint32_t, Rank>, std::vector<std::byte>> memory_;
};

struct Case {
  std::vector<Tensor> tensors;
  Division before;
  Division now;
  std::vector<uint32_t> nodes;  // of the current ranks
};

// What each rank then holds; empty if it needed nothing, or nothing existed.
std::vector<std::vector<uint32_t>> divide_anew(const Case& given, Nodes& memory, const std::set<Rank>& idle = {}) {
  std::vector<std::vector<uint32_t>> results(given.now.world());
  TestWorld world(given.now.world(), comm::small_config(), given.nodes);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    const uint32_t node = given.nodes[self];
    ShardExchange exchange(comm, self, given.nodes, given.before.world(), kVersion,
                           [&](Rank shard) { return memory.of(node, shard); });
    const bool need = !idle.contains(self);
    const StatusOr<bool> found = exchange.find(memory.shards_on(node), need);
    ASSERT_TRUE(found.ok()) << found.status();
    if (!*found) {
      return;
    }
    const auto texts = exchange.texts();
    ASSERT_TRUE(texts.ok()) << texts.status();
    ASSERT_EQ(texts->size(), need ? given.before.world() : 0);
    std::vector<ShardManifest> shards;
    for (Rank shard = 0; shard < texts->size(); ++shard) {
      EXPECT_EQ((*texts)[shard], "of shard " + std::to_string(shard));
      shards.push_back(manifest_of(given.tensors, given.before, shard));
    }
    const ShardManifest needs = need ? manifest_of(given.tensors, given.now, self) : ShardManifest{};
    std::vector<uint32_t>& target = results[self];
    target.resize(need ? state::shard_starts(needs.shards).back() / sizeof(uint32_t) : 0);
    const Status filled = exchange.fill(shards, needs, std::as_writable_bytes(std::span(target)));
    ASSERT_TRUE(filled.ok()) << filled;
  });
  return results;
}

TEST(ShardExchange, AnyDivisionBecomesAnyOther) {
  const auto seed = static_cast<uint32_t>(std::random_device()());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  for (int round = 0; round < 12; ++round) {
    Case given;
    for (uint32_t tensor = 0; tensor < 1 + below(6); ++tensor) {
      given.tensors.push_back({"layer" + std::to_string(tensor), 1 + below(600), 1 + below(600)});
    }
    given.before = {1 + below(4), 1 + below(2)};
    given.now = {1 + below(3), 1 + below(2)};
    const uint32_t nodes = 1 + below(std::min<uint32_t>(3, given.now.world()));
    for (Rank rank = 0; rank < given.now.world(); ++rank) {
      given.nodes.push_back(rank * nodes / given.now.world());
    }
    Nodes memory;
    for (Rank shard = 0; shard < given.before.world(); ++shard) {
      const std::vector<uint32_t> values = state_of(given.tensors, given.before, shard);
      memory.put(below(nodes), shard, values);
      memory.put(below(nodes), shard, values);  // a second copy, mostly elsewhere
    }
    const std::set<Rank> idle = below(3) == 0 ? std::set<Rank>{below(given.now.world())} : std::set<Rank>{};
    const auto results = divide_anew(given, memory, idle);
    for (Rank rank = 0; rank < given.now.world(); ++rank) {
      const auto expected = idle.contains(rank) ? std::vector<uint32_t>() : state_of(given.tensors, given.now, rank);
      EXPECT_EQ(results[rank], expected) << "rank " << rank << " in round " << round;
    }
  }
}

const std::vector<Tensor> kTensors{{"weight", 300, 70}, {"bias", 5, 1}};

TEST(ShardExchange, ACorruptCopyIsNotUsed) {
  const Case given{kTensors, {2, 1}, {3, 1}, {0, 1, 1}};
  Nodes memory;
  for (Rank shard = 0; shard < 2; ++shard) {
    memory.put(0, shard, state_of(kTensors, given.before, shard));
    memory.put(1, shard, state_of(kTensors, given.before, shard));
  }
  memory.spoil(0, 1);
  memory.spoil(1, 0);
  const auto results = divide_anew(given, memory);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(results[rank], state_of(kTensors, given.now, rank));
  }
}

// Two of the nodes serve it; the third takes it from them.
TEST(ShardExchange, AllNodesMayHaveACopy) {
  const Case given{kTensors, {2, 1}, {3, 2}, {0, 0, 1, 1, 2, 2}};
  Nodes memory;
  for (const uint32_t node : {0, 1, 2}) {
    for (Rank shard = 0; shard < 2; ++shard) {
      memory.put(node, shard, state_of(kTensors, given.before, shard));
    }
  }
  const auto results = divide_anew(given, memory);
  for (Rank rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(results[rank], state_of(kTensors, given.now, rank));
  }
}

TEST(ShardExchange, AShardThatIsNowhereIsSaidToAll) {
  const Case given{kTensors, {2, 1}, {2, 1}, {0, 1}};
  Nodes memory;
  memory.put(0, 0, state_of(kTensors, given.before, 0));
  for (const auto& result : divide_anew(given, memory)) {
    EXPECT_TRUE(result.empty());
  }
}

TEST(ShardExchange, WhatDoesNotFitIsNamed) {
  const std::vector<uint32_t> nodes{0};
  Nodes memory;
  memory.put(0, 0, state_of(kTensors, {1, 1}, 0));
  TestWorld world(1, comm::small_config(), nodes);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    ShardExchange exchange(comm, self, nodes, 1, kVersion, [&](Rank shard) { return memory.of(0, shard); });
    ASSERT_TRUE(*exchange.find({0}, true));
    ASSERT_TRUE(exchange.texts().ok());
    ShardManifest needs = manifest_of(kTensors, {1, 1}, 0);
    needs.shards[0].name = "another";
    std::vector<std::byte> target(state::shard_starts(needs.shards).back());
    const Status status = exchange.fill({manifest_of(kTensors, {1, 1}, 0)}, needs, target);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("another"), std::string::npos) << status;
  });
}

TEST(ShardExchange, AnInterruptionEndsIt) {
  const Case given{{{"large", 4000, 1000}}, {2, 1}, {2, 1}, {0, 1}};
  Nodes memory;
  memory.put(0, 0, state_of(given.tensors, given.before, 0));
  memory.put(0, 1, state_of(given.tensors, given.before, 1));
  std::unique_ptr<ShardExchange> exchanges[2];  // longer than the communicators
  TestWorld world(2, comm::small_config(), given.nodes);
  world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    std::unique_ptr<ShardExchange>& exchange = exchanges[self];
    exchange = std::make_unique<ShardExchange>(comm, self, given.nodes, 2, kVersion,
                                               [&](Rank shard) { return memory.of(given.nodes[self], shard); });
    ASSERT_TRUE(*exchange->find(memory.shards_on(given.nodes[self]), true));
    ASSERT_TRUE(exchange->texts().ok());
    if (self == 0) {
      world.await(1);
      world.interrupt();  // its peer waits for it, and would do so forever
      return;
    }
    world.signal();
    const ShardManifest needs = manifest_of(given.tensors, given.now, self);
    std::vector<std::byte> target(state::shard_starts(needs.shards).back());
    const std::vector<ShardManifest> shards{manifest_of(given.tensors, given.before, 0),
                                            manifest_of(given.tensors, given.before, 1)};
    EXPECT_TRUE(absl::IsAborted(exchange->fill(shards, needs, target)));
  });
}

}  // namespace
}  // namespace keepstep::rank
