// Every collective against a straightforward reference, with ranks as processes and as threads.

#include "comm/collectives/collectives.h"

#include <gtest/gtest.h>

#include <tuple>
#include <type_traits>

#include "comm/numbers/float16.h"
#include "comm/numbers/reduce.h"
#include "comm/test_world.h"

namespace keepstep::comm {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBFloat16,
                               DataType::kInt8,    DataType::kUint8,   DataType::kInt16,   DataType::kInt32,
                               DataType::kInt64,   DataType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBitAnd,  ReduceOp::kBitOr,   ReduceOp::kBitXor};

// A number of `type` for element `i` of `rank`: signs and magnitudes vary, so that the order of a sum shows.
void put(uint8_t* at, DataType type, size_t i, uint32_t rank) {
  const uint32_t mixed = (static_cast<uint32_t>(i) * 2654435761U) ^ (rank * 0x9e3779b9U + 77);
  const auto whole = static_cast<int32_t>(mixed >> 8) % 1000;
  const float real = static_cast<float>(whole - 500) * ((mixed & 3) == 0 ? 0.001F : 1.37F);
  const auto store = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
  switch (type) {
    case DataType::kFloat32:
      return store(real);
    case DataType::kFloat64:
      return store(static_cast<double>(real) / 3);
    case DataType::kFloat16:
      return store(f16_from_float(real));
    case DataType::kBFloat16:
      return store(bf16_from_float(real));
    case DataType::kInt16:
      return store(static_cast<int16_t>(mixed));
    case DataType::kInt32:
      return store(static_cast<int32_t>(mixed));
    case DataType::kInt64:
      return store(static_cast<int64_t>(mixed * 0x100000001ULL) - 5);
    case DataType::kInt8:
    case DataType::kUint8:
      return store(static_cast<uint8_t>(mixed >> 13));
    case DataType::kBool:
      return store(static_cast<uint8_t>(mixed >> 13 & 1));
  }
}

Bytes numbers(DataType type, size_t count, uint32_t rank, size_t offset = 0) {
  Bytes result(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    put(result.data() + i * size_of(type), type, offset + i, rank);
  }
  return result;
}

template <class T>
T combine(T a, T b, ReduceOp op) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;
  const auto x = static_cast<Wide>(a);
  const auto y = static_cast<Wide>(b);
  if constexpr (!std::is_floating_point_v<T>) {
    if (op == ReduceOp::kBitAnd) return static_cast<T>(a & b);
    if (op == ReduceOp::kBitOr) return static_cast<T>(a | b);
    if (op == ReduceOp::kBitXor) return static_cast<T>(a ^ b);
  }
  if (op == ReduceOp::kProduct) return static_cast<T>(x * y);
  if (op == ReduceOp::kMin) return std::min(a, b);
  if (op == ReduceOp::kMax) return std::max(a, b);
  return static_cast<T>(x + y);
}

// One element at a time, over all ranks in order.
template <class Stored, class T, class Load, class Store>
Bytes reference_as(const std::vector<Bytes>& inputs, ReduceOp op, Load load, Store store) {
  Bytes result(inputs[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(Stored)) {
    const auto element = [&](size_t rank) {
      Stored value;
      std::memcpy(&value, inputs[rank].data() + at, sizeof(value));
      return static_cast<T>(load(value));
    };
    T sum = element(0);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      sum = combine<T>(sum, element(rank), op);
    }
    if (op == ReduceOp::kAverage && inputs.size() > 1) {
      sum = static_cast<T>(sum / static_cast<T>(inputs.size()));
    }
    const Stored value = store(sum);
    std::memcpy(result.data() + at, &value, sizeof(value));
  }
  return result;
}

Bytes reference(const std::vector<Bytes>& inputs, DataType type, ReduceOp op) {
  const auto plain = [&](auto zero) {
    using T = decltype(zero);
    return reference_as<T, T>(inputs, op, [](T v) { return v; }, [](T v) { return v; });
  };
  switch (type) {
    case DataType::kFloat32:
      return plain(float{});
    case DataType::kFloat64:
      return plain(double{});
    case DataType::kFloat16:
      return reference_as<uint16_t, float>(inputs, op, float_from_f16, f16_from_float);
    case DataType::kBFloat16:
      return reference_as<uint16_t, float>(inputs, op, float_from_bf16, bf16_from_float);
    case DataType::kInt8:
      return plain(int8_t{});
    case DataType::kUint8:
      return plain(uint8_t{});
    case DataType::kInt16:
      return plain(int16_t{});
    case DataType::kInt32:
      return plain(int32_t{});
    case DataType::kInt64:
      return plain(int64_t{});
    case DataType::kBool:
      return reference_as<uint8_t, uint8_t>(
          inputs, op == ReduceOp::kSum ? ReduceOp::kBitOr : op, [](uint8_t v) { return v; },
          [](uint8_t v) { return v; });
  }
  return {};
}

// Which node each rank is on: "001" has three ranks, two on the first node and one on the second.
using Nodes = std::string;

// Processes are what is shipped; threads let the thread sanitizer see all ranks.
std::vector<std::tuple<Mode, Nodes>> worlds() {
  std::vector<std::tuple<Mode, Nodes>> result;
  for (const char* nodes : {"0", "00", "000", "0000", "00000", "00000000", "01", "001", "011", "012", "0011", "0101",
                            "01112", "00112233", "00011122"}) {
    result.emplace_back(Mode::kProcesses, nodes);
  }
  for (const char* nodes : {"00", "000", "00000", "01", "0112", "010"}) {
    result.emplace_back(Mode::kThreads, nodes);
  }
  return result;
}

class Collectives : public testing::TestWithParam<std::tuple<Mode, Nodes>> {
 protected:
  Mode mode() const { return std::get<0>(GetParam()); }
  size_t ranks() const { return std::get<1>(GetParam()).size(); }
  // Every expectation is the same wherever the nodes begin and end: so are the bits.
  TestWorld world(CommConfig config = small_config()) const {
    const Nodes& text = std::get<1>(GetParam());
    std::vector<uint32_t> nodes;
    for (const char node : text) {
      nodes.push_back(static_cast<uint32_t>(node - '0'));
    }
    return TestWorld(ranks(), config, nodes);
  }
  // Sizes in bytes around every boundary, and one of many chunks.
  static std::vector<size_t> sizes() {
    const size_t slot = small_config().slot_bytes;
    return {0, 1, 3, 1000, 8191, 8192, 8193, slot - 1, slot, slot + 1, 2 * slot + 7, 5 << 20};
  }
  std::vector<Bytes> inputs_of_all(DataType type, size_t count) const {
    std::vector<Bytes> inputs;
    for (Rank rank = 0; rank < ranks(); ++rank) {
      inputs.push_back(numbers(type, count, rank));
    }
    return inputs;
  }
};

TEST_P(Collectives, all_reduce_is_the_reference_bit_for_bit_for_every_type_and_operation) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    for (const DataType type : kTypes) {
      for (const ReduceOp op : kOps) {
        for (const size_t count : {0, 1, 3, 1000, 12345}) {
          if (!why_not(type, op).empty()) {
            continue;
          }
          Bytes data = numbers(type, count, self);
          expect_done(comm, comm.all_reduce(kWorld, data.data(), count, type, op));
          EXPECT_TRUE(data == reference(inputs_of_all(type, count), type, op))
              << name(type) << " " << name(op) << " " << count;
        }
      }
    }
  });
}

TEST_P(Collectives, all_reduce_and_reduce_take_any_size) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    for (const size_t bytes : sizes()) {
      const size_t count = bytes / 4;
      const Bytes expected = reference(inputs_of_all(DataType::kFloat32, count), DataType::kFloat32, ReduceOp::kSum);
      const Bytes own = numbers(DataType::kFloat32, count, self);
      Bytes data = own;
      expect_done(comm, comm.all_reduce(kWorld, data.data(), count, DataType::kFloat32, ReduceOp::kSum));
      EXPECT_TRUE(data == expected) << "all_reduce of " << bytes;
      const Rank root = bytes % ranks();
      data = own;
      expect_done(comm, comm.reduce(kWorld, data.data(), count, DataType::kFloat32, ReduceOp::kSum, root));
      EXPECT_TRUE(data == (self == root ? expected : own)) << "reduce of " << bytes;
    }
  });
}

TEST_P(Collectives, broadcast_gather_and_scatter_take_any_size) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    for (const size_t bytes : sizes()) {
      const Rank root = (bytes + 1) % ranks();
      Bytes data = pattern(bytes, self);
      expect_done(comm, comm.broadcast(kWorld, data.data(), bytes, root));
      EXPECT_TRUE(data == pattern(bytes, root)) << "broadcast of " << bytes;

      const Bytes input = pattern(bytes, self);
      std::vector<Bytes> gathered(ranks(), Bytes(bytes));
      std::vector<void*> outputs;
      for (Bytes& output : gathered) {
        outputs.push_back(output.data());
      }
      expect_done(comm, comm.all_gather(kWorld, input.data(), outputs, bytes));
      for (Rank rank = 0; rank < ranks(); ++rank) {
        EXPECT_TRUE(gathered[rank] == pattern(bytes, rank)) << "all_gather of " << bytes << " from " << rank;
        gathered[rank].assign(bytes, 0);
      }
      expect_done(comm, comm.gather(kWorld, input.data(), self == root ? outputs : std::vector<void*>{}, bytes, root));
      for (Rank rank = 0; rank < ranks() && self == root; ++rank) {
        EXPECT_TRUE(gathered[rank] == pattern(bytes, rank)) << "gather of " << bytes << " from " << rank;
      }

      std::vector<Bytes> parts;
      std::vector<const void*> inputs;
      for (Rank rank = 0; rank < ranks() && self == root; ++rank) {
        parts.push_back(pattern(bytes, 100 + rank));
        inputs.push_back(parts.back().data());
      }
      Bytes part(bytes);
      expect_done(comm, comm.scatter(kWorld, inputs, part.data(), bytes, root));
      EXPECT_TRUE(part == pattern(bytes, 100 + self)) << "scatter of " << bytes;
    }
  });
}

TEST_P(Collectives, reduce_scatter_gives_each_rank_its_part_of_the_sum) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt64}) {
      for (const size_t count : {0, 1, 3, 1000, 40000}) {
        std::vector<Bytes> given;
        std::vector<const void*> inputs;
        std::vector<Bytes> for_self;
        for (Rank rank = 0; rank < ranks(); ++rank) {
          given.push_back(numbers(type, count, self, rank * count));
          for_self.push_back(numbers(type, count, rank, self * count));
        }
        for (const Bytes& input : given) {
          inputs.push_back(input.data());
        }
        Bytes output(count * size_of(type));
        expect_done(comm, comm.reduce_scatter(kWorld, inputs, output.data(), count, type, ReduceOp::kSum));
        EXPECT_TRUE(output == reference(for_self, type, ReduceOp::kSum)) << name(type) << " " << count;
        // In place: torch's reduce_scatter may write into the input.
        expect_done(comm, comm.reduce_scatter(kWorld, inputs, given[self].data(), count, type, ReduceOp::kSum));
        EXPECT_TRUE(given[self] == output) << "in place " << name(type) << " " << count;
      }
    }
  });
}

TEST_P(Collectives, all_to_all_exchanges_parts_of_different_sizes) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    for (const size_t unit : {0, 1, 777, 30011}) {
      const auto bytes = [&](Rank from, Rank to) { return unit * ((from + 2 * to) % 4); };
      std::vector<Bytes> given;
      std::vector<Bytes> taken;
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      std::vector<size_t> input_bytes;
      std::vector<size_t> output_bytes;
      for (Rank rank = 0; rank < ranks(); ++rank) {
        input_bytes.push_back(bytes(self, rank));
        output_bytes.push_back(bytes(rank, self));
        given.push_back(pattern(input_bytes.back(), self * 100 + rank));
        taken.emplace_back(output_bytes.back());
      }
      for (Rank rank = 0; rank < ranks(); ++rank) {
        inputs.push_back(given[rank].data());
        outputs.push_back(taken[rank].data());
      }
      expect_done(comm, comm.all_to_all(kWorld, inputs, input_bytes, outputs, output_bytes));
      for (Rank rank = 0; rank < ranks(); ++rank) {
        EXPECT_TRUE(taken[rank] == pattern(output_bytes[rank], rank * 100 + self)) << unit << " from " << rank;
      }
    }
  });
}

TEST_P(Collectives, how_a_tensor_is_cut_into_buckets_does_not_change_a_bit) {
  const size_t count = 100'003;
  const auto sum_in_pieces = [&](CommConfig config, size_t piece) {
    world(config).run(mode(), [&](Communicator& comm, Rank self) {
      Bytes data = numbers(DataType::kFloat32, count, self);
      std::vector<OpId> ops;
      for (size_t at = 0; at < count; at += piece) {
        ops.push_back(comm.all_reduce(kWorld, data.data() + at * 4, std::min(piece, count - at), DataType::kFloat32,
                                      ReduceOp::kSum));
      }
      for (const OpId op : ops) {
        expect_done(comm, op);
      }
      EXPECT_TRUE(data == reference(inputs_of_all(DataType::kFloat32, count), DataType::kFloat32, ReduceOp::kSum))
          << piece;
    });
  };
  CommConfig tiny = small_config();
  tiny.slot_bytes = 4096;
  for (const size_t piece : {count, size_t{50'000}, size_t{4097}, size_t{999}}) {
    sum_in_pieces(small_config(), piece);
    sum_in_pieces(tiny, piece);
  }
}

TEST_P(Collectives, small_and_large_operations_of_all_kinds_follow_each_other_without_waiting) {
  world().run(mode(), [&](Communicator& comm, Rank self) {
    constexpr size_t kRounds = 60;
    std::vector<Bytes> sums;
    std::vector<Bytes> copies;
    std::vector<OpId> ops;
    for (size_t round = 0; round < kRounds; ++round) {
      sums.push_back(numbers(DataType::kFloat32, round * round * round % 50'000, self));
      copies.push_back(pattern(round % 3 == 0 ? 0 : round * 4001, self));
    }
    for (size_t round = 0; round < kRounds; ++round) {
      ops.push_back(
          comm.all_reduce(kWorld, sums[round].data(), sums[round].size() / 4, DataType::kFloat32, ReduceOp::kSum));
      ops.push_back(comm.broadcast(kWorld, copies[round].data(), copies[round].size(), round % ranks()));
      if (round % 7 == 0) {
        ops.push_back(comm.barrier(kWorld));
      }
    }
    for (const OpId op : ops) {
      expect_done(comm, op);
    }
    EXPECT_EQ(comm.collectives_entered(), ops.size());
    for (size_t round = 0; round < kRounds; ++round) {
      const auto inputs = inputs_of_all(DataType::kFloat32, sums[round].size() / 4);
      EXPECT_TRUE(sums[round] == reference(inputs, DataType::kFloat32, ReduceOp::kSum)) << round;
      EXPECT_TRUE(copies[round] == pattern(copies[round].size(), round % ranks())) << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, testing::ValuesIn(worlds()), [](const auto& info) {
  return mode_name(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
});

}  // namespace
}  // namespace keepstep::comm
