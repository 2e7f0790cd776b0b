#include "state/vault/reed_solomon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "base/checksum.h"

namespace keepstep::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Bytes = std::vector<std::byte>;

// k data blocks with these lengths, and the result of encode().
class Group {
 public:
  Group(std::vector<size_t> lengths, uint32_t parity, uint64_t seed)
      : code_(ReedSolomon::create(static_cast<uint32_t>(lengths.size()), parity).value()) {
    std::mt19937_64 random(seed);
    for (const size_t length : lengths) {
      Bytes block(length);
      std::generate(block.begin(), block.end(), [&] { return static_cast<std::byte>(random()); });
      blocks_.push_back(std::move(block));
    }
    const size_t longest = *std::max_element(lengths.begin(), lengths.end());
    blocks_.resize(blocks_.size() + parity, Bytes(longest));
    sums_.resize(blocks_.size());
    const std::vector<ReedSolomon::ConstBlock> data(blocks_.begin(), blocks_.begin() + code_.data());
    const std::vector<ReedSolomon::Block> into(blocks_.begin() + code_.data(), blocks_.end());
    EXPECT_TRUE(code_.encode(data, into, sums_).ok());
  }

  const ReedSolomon& code() const { return code_; }
  size_t size() const { return blocks_.size(); }
  const Bytes& block(size_t number) const { return blocks_[number]; }
  Bytes& block(size_t number) { return blocks_[number]; }
  std::vector<uint64_t>& sums() { return sums_; }

  std::vector<std::optional<ReedSolomon::ConstBlock>> without(const std::vector<uint32_t>& lost) const {
    std::vector<std::optional<ReedSolomon::ConstBlock>> left(blocks_.begin(), blocks_.end());
    for (const uint32_t block : lost) {
      left[block].reset();
    }
    return left;
  }

  // Rebuilds all of `lost` into separate memory, and compares.
  StatusOr<std::vector<uint32_t>> rebuild(const std::vector<uint32_t>& lost, bool summed = true,
                                          const Group* original = nullptr) const {
    std::vector<Bytes> into;
    std::vector<ReedSolomon::Wanted> wanted;
    for (const uint32_t block : lost) {
      into.emplace_back(blocks_[block].size(), std::byte{0xa5});
    }
    for (size_t index = 0; index < lost.size(); ++index) {
      wanted.push_back({lost[index], into[index]});
    }
    auto found = code_.rebuild(without(lost), wanted, summed ? sums_ : std::vector<uint64_t>{});
    for (size_t index = 0; index < lost.size() && found.ok(); ++index) {
      EXPECT_EQ(into[index], (original != nullptr ? *original : *this).block(lost[index])) << "block " << lost[index];
    }
    return found;
  }

 private:
  ReedSolomon code_;
  std::vector<Bytes> blocks_;
  std::vector<uint64_t> sums_;
};

std::vector<uint32_t> members(uint32_t set) {
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; set != 0; ++number, set >>= 1U) {
    if ((set & 1U) != 0) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

class EveryPattern : public testing::TestWithParam<std::pair<uint32_t, uint32_t>> {};

TEST_P(EveryPattern, of_lost_blocks_is_rebuilt_and_one_more_is_an_error_that_names_them) {
  const auto [data, parity] = GetParam();
  for (const bool even : {true, false}) {
    std::vector<size_t> lengths(data, 70'001);
    for (size_t block = 0; !even && block < data; ++block) {
      lengths[block] = block == 1 ? 0 : 100 + 9001 * block;
    }
    const Group group(lengths, parity, 5);
    for (uint32_t set = 1; set < 1U << (data + parity); ++set) {
      const std::vector<uint32_t> lost = members(set);
      if (lost.size() <= parity) {
        for (const bool summed : {true, false}) {
          const auto found = group.rebuild(lost, summed);
          ASSERT_TRUE(found.ok()) << found.status();
          EXPECT_THAT(*found, IsEmpty());
        }
      } else if (lost.size() == parity + 1) {
        const auto found = group.rebuild(lost);
        ASSERT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
        for (const uint32_t block : lost) {
          EXPECT_THAT(std::string(found.status().message()), HasSubstr(std::to_string(block)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ReedSolomon, EveryPattern, testing::Values(std::pair{6U, 2U}, std::pair{4U, 2U}),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "_and_" + std::to_string(info.param.second);
                         });

TEST(ReedSolomon, random_codes_lengths_and_losses_come_back_bit_for_bit) {
  std::mt19937_64 random(21);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 21");
    const bool wide = round % 50 == 0;
    const auto data = static_cast<uint32_t>(1 + random() % (wide ? 200 : 12));
    const auto parity = static_cast<uint32_t>(1 + random() % (wide ? 55 : 5));
    std::vector<size_t> lengths(data);
    const size_t most = 1 + random() % (round % 10 == 0 ? 300'000 : 3000);
    for (size_t& length : lengths) {
      length = random() % 3 == 0 ? most : random() % (most + 1);
    }
    const Group group(lengths, parity, round);
    std::vector<uint32_t> all(data + parity);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(random() % (parity + 1));
    const auto found = group.rebuild(all, random() % 2 == 0);
    ASSERT_TRUE(found.ok()) << found.status();
  }
}

// Arithmetic over GF(2^8) by hand: stored blocks must stay readable, whatever library computes them.
uint8_t times(uint8_t a, uint8_t b) {
  uint8_t product = 0;
  for (; b != 0; b = static_cast<uint8_t>(b >> 1U)) {
    product = static_cast<uint8_t>((b & 1U) != 0 ? product ^ a : product);
    a = static_cast<uint8_t>((a << 1U) ^ ((a & 0x80U) != 0 ? 0x1dU : 0U));
  }
  return product;
}

TEST(ReedSolomon, parity_is_that_of_a_cauchy_matrix_over_the_field_of_polynomial_11d) {
  const Group group({1000, 1000, 700, 33}, 3, 9);
  for (uint8_t row = 4; row < 7; ++row) {
    Bytes expected(1000);
    for (uint8_t column = 0; column < 4; ++column) {
      uint8_t inverse = 1;
      while (times(inverse, row ^ column) != 1) {
        ++inverse;
      }
      for (size_t at = 0; at < group.block(column).size(); ++at) {
        expected[at] ^= static_cast<std::byte>(times(inverse, static_cast<uint8_t>(group.block(column)[at])));
      }
    }
    EXPECT_EQ(group.block(row), expected);
  }
}

TEST(ReedSolomon, checksums_are_those_of_the_blocks) {
  Group group({300'000, 1, 0, 123'457}, 2, 3);
  for (size_t block = 0; block < group.size(); ++block) {
    EXPECT_EQ(group.sums()[block], checksum(group.block(block).data(), group.block(block).size()));
  }
}

TEST(ReedSolomon, a_corrupt_block_is_found_and_made_up_for_while_enough_are_left) {
  const Group original(std::vector<size_t>(6, 100'000), 2, 1);
  for (uint32_t bad = 0; bad < 8; ++bad) {
    Group group(std::vector<size_t>(6, 100'000), 2, 1);
    group.block(bad)[77'777] ^= std::byte{4};
    const uint32_t lost = (bad + 3) % 8;
    const auto found = group.rebuild({lost}, true, &original);
    ASSERT_TRUE(found.ok()) << found.status();
    const bool was_read = bad < 6 || lost < 6;  // no parity is read when all data blocks are at hand
    if (was_read && !(bad == 7 && lost < 6)) {  // a single loss does not need the second parity block
      EXPECT_THAT(*found, ElementsAre(bad));
    } else {
      EXPECT_THAT(*found, IsEmpty());
    }
  }
  Group group(std::vector<size_t>(6, 100'000), 2, 1);
  group.block(4)[0] ^= std::byte{1};
  group.block(6).back() ^= std::byte{128};
  const auto found = group.rebuild({2});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(found.status().message(), "rebuild 6+2: 6 of 8 blocks are needed and 5 are left: lost 2, corrupt 4, 6");
}

TEST(ReedSolomon, every_single_flipped_bit_is_found) {
  const Group original({40, 40, 13}, 1, 2);
  for (uint32_t bad = 0; bad < 4; ++bad) {
    for (size_t bit = 0; bit < original.block(bad).size() * 8; ++bit) {
      Group group({40, 40, 13}, 1, 2);
      group.block(bad)[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      ASSERT_FALSE(group.rebuild({(bad + 1) % 4}).ok()) << "bit " << bit << " of block " << bad;
    }
  }
}

TEST(ReedSolomon, what_is_rebuilt_to_another_length_than_it_had_is_found) {
  const Group group({1000, 900, 800}, 2, 4);
  Bytes shorter(899);
  const std::vector<ReedSolomon::Wanted> wanted = {{1, shorter}};
  Group copy({1000, 900, 800}, 2, 4);
  const auto found = group.code().rebuild(group.without({1}), wanted, copy.sums());
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("data block 1 has a wrong checksum after the rebuild"));
}

TEST(ReedSolomon, wrong_numbers_and_lengths_are_errors_that_say_which) {
  for (const auto& [data, parity] :
       std::vector<std::pair<uint32_t, uint32_t>>{{0, 2}, {6, 0}, {254, 2}, {0xffffffff, 2}, {2, 0xffffffff}}) {
    EXPECT_EQ(ReedSolomon::create(data, parity).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(ReedSolomon::create(200, 55).ok());
  Group group({100, 90}, 2, 8);
  Bytes hundred(100);
  Bytes other(100);
  Bytes ninety(90);
  const ReedSolomon& code = group.code();
  using ConstBlocks = std::vector<ReedSolomon::ConstBlock>;
  using Blocks = std::vector<ReedSolomon::Block>;
  std::vector<uint64_t> three_sums(3);
  const auto expect_refused = [](const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  expect_refused(code.encode(ConstBlocks{hundred}, Blocks{hundred, other}), "got 1 data blocks, 2 parity blocks");
  expect_refused(code.encode(ConstBlocks{hundred, ninety}, Blocks{other}), "1 parity blocks");
  expect_refused(code.encode(ConstBlocks{hundred, ninety}, Blocks{hundred, other}, three_sums), "3 checksums");
  expect_refused(code.encode(ConstBlocks{hundred, hundred}, Blocks{other, ninety}),
                 "parity block 1 has 90 bytes; the longest data block has 100");
  const auto rebuild = [&](std::vector<std::optional<ReedSolomon::ConstBlock>> blocks,
                           std::vector<ReedSolomon::Wanted> wanted,
                           std::vector<uint64_t> sums = {}) { return code.rebuild(blocks, wanted, sums).status(); };
  expect_refused(rebuild({}, {}), "got 0 blocks");
  expect_refused(rebuild(group.without({}), {}, {1, 2, 3}), "3 checksums");
  expect_refused(rebuild(group.without({0}), {{4, hundred}}), "block 4 is wanted");
  expect_refused(rebuild(group.without({0}), {{0, hundred}, {0, other}}), "block 0 is wanted twice");
  expect_refused(rebuild(group.without({3}), {{3, ninety}}),
                 "parity block 1 (block 3) has 90 bytes, parity block 0 (block 2) has 100");
  Bytes longer(101);
  expect_refused(rebuild(group.without({1}), {{1, longer}}), "data block 1 has 101 bytes, more than");
  expect_refused(rebuild(group.without({2, 3}), {{2, ninety}, {3, ninety}}), "data block 0 has 100 bytes, more than");
  expect_refused(rebuild(group.without({2, 3}), {{2, longer}, {3, longer}}), "the longest data block 100");
}

TEST(ReedSolomon, nothing_but_empty_blocks_is_a_group_too) {
  const Group group({0, 0, 0}, 2, 1);
  EXPECT_TRUE(group.rebuild({0, 4}).ok());
}

TEST(ReedSolomon, ranges_of_the_blocks_can_be_coded_by_themselves_by_several_threads) {
  const Group group(std::vector<size_t>(6, 1 << 20), 2, 6);
  std::vector<Bytes> parity(2, Bytes(1 << 20));
  std::vector<Bytes> rebuilt(2, Bytes(1 << 20));
  std::vector<std::thread> threads;
  constexpr size_t kRange = (1 << 20) / 8;
  for (size_t range = 0; range < 8; ++range) {
    threads.emplace_back([&, range] {
      const size_t from = range * kRange;
      std::vector<ReedSolomon::ConstBlock> data;
      std::vector<ReedSolomon::Block> into;
      std::vector<std::optional<ReedSolomon::ConstBlock>> left(8);
      std::vector<ReedSolomon::Wanted> wanted;
      for (uint32_t block = 0; block < 8; ++block) {
        const ReedSolomon::ConstBlock part = ReedSolomon::ConstBlock(group.block(block)).subspan(from, kRange);
        block < 6 ? data.push_back(part) : into.push_back(ReedSolomon::Block(parity[block - 6]).subspan(from, kRange));
        if (block == 1 || block == 5) {
          wanted.push_back({block, ReedSolomon::Block(rebuilt[wanted.size()]).subspan(from, kRange)});
        } else {
          left[block] = part;
        }
      }
      EXPECT_TRUE(group.code().encode(data, into).ok());
      EXPECT_TRUE(group.code().rebuild(left, wanted).ok());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(parity[0], group.block(6));
  EXPECT_EQ(parity[1], group.block(7));
  EXPECT_EQ(rebuilt[0], group.block(1));
  EXPECT_EQ(rebuilt[1], group.block(5));
  EXPECT_EQ(group.code().cached_combinations(), 2u) << "encoding, and one combination of lost blocks";
}

TEST(ReedSolomon, keeps_the_tables_of_the_last_32_combinations) {
  const Group group(std::vector<size_t>(10, 100), 3, 6);
  for (uint32_t first = 0; first < 13; ++first) {
    for (uint32_t second = first + 1; second < 13; ++second) {
      ASSERT_TRUE(group.rebuild({first, second}).ok());
      ASSERT_LE(group.code().cached_combinations(), 32u);
    }
  }
  EXPECT_EQ(group.code().cached_combinations(), 32u);
  EXPECT_TRUE(group.rebuild({0, 1}).ok()) << "one that was dropped is made again";
}

}  // namespace
}  // namespace keepstep::state
