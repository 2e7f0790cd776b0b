#include "proto/rank_table_wire.h"

#include <gtest/gtest.h>

#include <random>

#include "base/checksum.h"
#include "brain/table/rank_table_testing.h"

namespace keepstep::proto {
namespace {

using brain::Identity;
using brain::ipv4;
using brain::RankTable;
using Entry = RankTable::Entry;
namespace tables = brain::testing_tables;

constexpr Identity kIdentity{3, 41};

RankTable table_of(std::vector<Entry> entries) {
  std::string why;
  auto table = RankTable::make(std::move(entries), &why);
  EXPECT_TRUE(table.has_value()) << why;
  return table.value_or(RankTable());
}

IdentifiedDelta delta_of(const RankTable& base, const RankTable& target) {
  return {kIdentity, 40, digest(target), difference(base, target)};
}

std::string resealed(std::string bytes) {
  const uint64_t sum = checksum(bytes.data(), bytes.size() - 8);
  bytes.replace(bytes.size() - 8, 8, reinterpret_cast<const char*>(&sum), 8);
  return bytes;
}

TEST(RankTableWire, a_table_comes_back_from_its_bytes_as_it_was) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const RankTable table = table_of(tables::random_entries(random, 60));
    const auto back = decode_table(encode(kIdentity, table));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->table, table);
    ASSERT_EQ(back->identity, kIdentity);
    ASSERT_EQ(digest(back->table), digest(table));
  }
}

TEST(RankTableWire, a_difference_comes_back_and_leads_to_the_same_table) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const RankTable base = table_of(tables::random_entries(random, 20));
    const RankTable target = table_of(tables::changed(random, base.entries()));
    const auto back = decode_delta(encode(delta_of(base, target)));
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->identity, kIdentity);
    ASSERT_EQ(back->base, 40u);
    const auto applied = apply(base, back->delta);
    ASSERT_EQ(applied, target);
    ASSERT_EQ(digest(*applied), back->result);
  }
}

TEST(RankTableWire, costs_sixteen_bytes_a_node_and_a_constant_for_both_families_of_addresses) {
  std::vector<Entry> four;
  std::vector<Entry> six;
  std::mt19937_64 random(1);
  for (uint32_t node = 0; node < 2048; ++node) {
    // IPv6: one network, random interface identifiers and port bases.
    brain::Address address{{0xfd, 0x12, 0x34, 0x56, 0x78, 0x9a, 0, 1}};
    for (size_t byte = 8; byte < 16; ++byte) {
      address.bytes[byte] = static_cast<uint8_t>(random());
    }
    six.push_back({node, 8, 0, {address, static_cast<uint16_t>(1024 + random() % 60000)}});
    four.push_back({node, 8, 0, {ipv4(10, 1, static_cast<uint8_t>(node >> 8), static_cast<uint8_t>(node)), 20000}});
  }
  EXPECT_EQ(encode(kIdentity, table_of(four)).size(), 16 + 16 + 2048 * 16 + 8u);
  EXPECT_EQ(encode(kIdentity, table_of(six)).size(), 16 + 16 + 2048 * 16 + 8u);
  std::vector<Entry> replaced = six;
  replaced[1000].endpoint.address.bytes[15] ^= 1;
  EXPECT_EQ(encode(delta_of(table_of(six), table_of(replaced))).size(), 32 + 16 + 12 + 16 + 8u);
  EXPECT_EQ(encode(delta_of(table_of(six), table_of(six))).size(), 32 + 8u) << "a rank replaced on its node";
}

TEST(RankTableWire, is_byte_for_byte_what_the_design_says) {
  const std::string bytes = encode({2, 5}, table_of({{7, 8, 0, {ipv4(10, 0, 0, 9), 20000}}}));
  const unsigned char expected[] = {
      1, 0, 1, 0, 1, 0, 0,    0,    2,  0, 0, 0, 5,    0,    0, 0,   // version, table, 1 shape, 1 row, term, generation
      0, 0, 0, 0, 0, 0, 0,    0,    8,  0, 0, 0, 0,    0,    0, 0,   // network, 8 ranks, from local rank 0
      7, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9, 0x20, 0x4e, 0, 0};  // node, interface, port base, shape
  ASSERT_EQ(bytes.size(), sizeof(expected) + 8);
  EXPECT_EQ(bytes.substr(0, sizeof(expected)), std::string(reinterpret_cast<const char*>(expected), sizeof(expected)));
  EXPECT_EQ(bytes, resealed(bytes));
}

TEST(RankTableWire, what_was_damaged_made_by_another_version_or_cut_short_is_refused) {
  const std::string good = encode(kIdentity, table_of({{7, 8, 0, {ipv4(10, 0, 0, 9), 20000}}}));
  const auto why = [](const std::string& bytes) { return std::string(decode_table(bytes).status().message()); };
  std::string bytes = good;
  bytes[40] = static_cast<char>(bytes[40] ^ 1);
  EXPECT_EQ(why(bytes), "a malformed rank table: its checksum is wrong");
  bytes = good;
  bytes[0] = 2;
  EXPECT_EQ(why(bytes),
            "a malformed rank table: it has format version 2, this is version 1; run the same keepstep everywhere");
  EXPECT_EQ(why(good.substr(0, 23)), "a malformed rank table: 23 bytes are too few");
  EXPECT_EQ(why(encode(delta_of({}, {}))), "a malformed rank table: kind 1 instead of 0");
  bytes = good;
  bytes[7] = 0x7f;  // two billion entries
  EXPECT_EQ(why(resealed(bytes)), "a malformed rank table: it announces 2130706433 entries and ends before them");
  bytes = good;
  bytes[46] = 1;
  EXPECT_EQ(why(resealed(bytes)), "a malformed rank table: shape 1 of 1");
  bytes = good;
  bytes[24] = 0;
  EXPECT_NE(why(resealed(bytes)).find("it has no ranks"), std::string::npos);
}

// Whatever byte is wrong, it neither causes a crash nor makes a table larger than the bytes account for. Half of the
// mutants get a valid checksum, so that the checks after it are reached.
TEST(RankTableWire, random_mutations_are_refused_or_make_a_table_no_larger_than_their_bytes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  size_t taken = 0;
  size_t refused = 0;
  for (int round = 0; round < 50'000; ++round) {
    const RankTable base = table_of(tables::random_entries(random, 6));
    const bool whole = random() % 2 == 0;
    std::string bytes =
        whole ? encode(kIdentity, base) : encode(delta_of(base, table_of(tables::changed(random, base.entries()))));
    for (uint64_t changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.insert(at, 1 + random() % 40, static_cast<char>(random()));
          break;
        default:
          bytes[random() % 2 == 0 ? at : at % 32] = static_cast<char>(random());
      }
    }
    if (random() % 2 == 0 && bytes.size() >= 24) {
      bytes = resealed(bytes);
    }
    if (whole) {
      const auto table = decode_table(bytes);
      (table.ok() ? taken : refused) += 1;
      ASSERT_TRUE(!table.ok() || table->table.entries().size() * kRankTableEntryBytes <= bytes.size());
      continue;
    }
    const auto delta = decode_delta(bytes);
    (delta.ok() ? taken : refused) += 1;
    if (delta.ok()) {
      ASSERT_LE(delta->delta.splices.size() * 12, bytes.size());
      const auto applied = apply(base, delta->delta);
      ASSERT_TRUE(!applied.has_value() ||
                  applied->entries().size() <= base.entries().size() + bytes.size() / kRankTableEntryBytes);
    }
  }
  EXPECT_GT(taken, 100u) << "the checks after the checksum were never passed";
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace keepstep::proto
