#include "data/corpus/pack_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace keepstep::data {
namespace {

using testing::ElementsAre;

std::vector<Range> documents_of(const std::vector<uint64_t>& lengths) {
  std::vector<Range> documents;
  uint64_t at = 0;
  for (const uint64_t length : lengths) {
    documents.push_back({at, at + length});
    at += length;
  }
  return documents;
}

PackPlan plan(const std::vector<uint64_t>& lengths, uint64_t capacity, TooLong too_long = TooLong::kCut) {
  const auto made = plan_packing(documents_of(lengths), capacity, too_long);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

std::vector<std::vector<uint32_t>> rows_of(const PackPlan& plan) {
  std::vector<std::vector<uint32_t>> rows(plan.rows());
  for (uint64_t row = 0; row < plan.rows(); ++row) {
    for (uint64_t i = plan.starts[row]; i < plan.starts[row + 1]; ++i) {
      rows[row].push_back(plan.pieces[i].count);
    }
  }
  return rows;
}

TEST(PackPlan, puts_each_document_where_the_least_room_is_left) {
  // 7 and 6 begin rows; 4 fits best next to 6 (the room of 3 next to 7 is too small), 3 next to 7.
  EXPECT_THAT(rows_of(plan({3, 6, 4, 7}, 10)), ElementsAre(ElementsAre(3, 7), ElementsAre(6, 4)));
  EXPECT_THAT(rows_of(plan({5, 5, 5}, 10)), ElementsAre(ElementsAre(5, 5), ElementsAre(5)));
}

TEST(PackPlan, cuts_what_is_too_long_into_pieces_that_share_a_token) {
  const PackPlan cut = plan({10}, 4);
  EXPECT_THAT(cut.pieces, ElementsAre(PackPiece{0, 4}, PackPiece{3, 4}, PackPiece{6, 4}));
  EXPECT_EQ(cut.cut, 1);
  EXPECT_THAT(plan({11}, 4).pieces, ElementsAre(PackPiece{0, 4}, PackPiece{3, 4}, PackPiece{6, 4}, PackPiece{9, 2}));
  EXPECT_THAT(plan({10, 4}, 4, TooLong::kTruncate).pieces, ElementsAre(PackPiece{0, 4}, PackPiece{10, 4}));
  EXPECT_THAT(plan({10, 4}, 4, TooLong::kDrop).pieces, ElementsAre(PackPiece{10, 4}));
}

TEST(PackPlan, leaves_out_what_has_nothing_to_predict) {
  const PackPlan none = plan({0, 1, 1}, 8);
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(none.skipped, 3);
  EXPECT_EQ(plan({}, 8).rows(), 0);
}

// The straightforward way: each document, longest first, is compared with all rows.
std::vector<uint64_t> rooms_of_the_plain_way(std::vector<uint64_t> lengths, uint64_t capacity) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<uint64_t> rooms;
  for (const uint64_t length : lengths) {
    auto best = rooms.end();
    for (auto room = rooms.begin(); room != rooms.end(); ++room) {
      if (*room >= length && (best == rooms.end() || *room < *best)) {
        best = room;
      }
    }
    if (best == rooms.end()) {
      rooms.push_back(capacity - length);
    } else {
      *best -= length;
    }
  }
  std::sort(rooms.begin(), rooms.end());
  return rooms;
}

TEST(PackPlan, is_best_fit_decreasing_and_holds_every_document_once) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint64_t capacity = 2 + random() % 60;
    std::vector<uint64_t> lengths(random() % 200);
    for (uint64_t& length : lengths) {
      length = 2 + random() % (capacity - 1);
    }
    const PackPlan made = plan(lengths, capacity);
    std::vector<PackPiece> pieces = made.pieces;
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    const std::vector<Range> documents = documents_of(lengths);
    ASSERT_EQ(pieces.size(), documents.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_EQ(pieces[i], (PackPiece{documents[i].begin, static_cast<uint32_t>(documents[i].size())}));
    }
    std::vector<uint64_t> rooms;
    uint64_t first = 0;
    for (uint64_t row = 0; row < made.rows(); ++row) {
      uint64_t room = capacity;
      ASSERT_LT(made.starts[row], made.starts[row + 1]);
      ASSERT_GE(made.pieces[made.starts[row]].begin, first) << "rows are numbered by their first document";
      first = made.pieces[made.starts[row]].begin;
      for (uint64_t i = made.starts[row]; i < made.starts[row + 1]; ++i) {
        ASSERT_TRUE(i == made.starts[row] || made.pieces[i - 1].begin < made.pieces[i].begin);
        ASSERT_LE(made.pieces[i].count, room);
        room -= made.pieces[i].count;
      }
      rooms.push_back(room);
    }
    std::sort(rooms.begin(), rooms.end());
    ASSERT_EQ(rooms, rooms_of_the_plain_way(lengths, capacity));
  }
}

}  // namespace
}  // namespace keepstep::data
