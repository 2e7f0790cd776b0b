#include "data/corpus/token_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace keepstep::data {
namespace {

using testing::HasSubstr;

struct Parts {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> documents;
  std::string tail;

  std::vector<std::byte> bytes() const {
    std::string text = magic;
    const auto put = [&](const auto& value) { text.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    const auto put_all = [&](const auto& table) {
      for (const auto& value : table) {
        put(value);
      }
    };
    put(version);
    put(type);
    put(static_cast<uint64_t>(lengths.size()));
    put(static_cast<uint64_t>(documents.size()));
    put_all(lengths);
    put_all(pointers);
    put_all(documents);
    text += tail;
    std::vector<std::byte> result(text.size());
    std::memcpy(result.data(), text.data(), text.size());
    return result;
  }
};

// Three sequences of uint16 in two documents: 3, 0 and 4 tokens.
Parts good() { return {.lengths = {3, 0, 4}, .pointers = {0, 6, 6}, .documents = {0, 2, 3}}; }

std::string why_not(const Parts& parts, uint64_t token_bytes = 14) {
  const auto bytes = parts.bytes();
  const auto index = TokenIndex::open(bytes, "a.idx", token_bytes);
  return index.ok() ? "" : std::string(index.status().message());
}

TEST(TokenIndex, says_where_sequences_lie) {
  const auto bytes = good().bytes();
  const auto index = TokenIndex::open(bytes, "a.idx", 14);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->type(), TokenType::kUint16);
  EXPECT_EQ(index->sequences(), 3);
  EXPECT_EQ(index->documents(), 2);
  EXPECT_EQ(index->tokens(), 7);
  EXPECT_TRUE(index->contiguous());
  EXPECT_EQ(index->place(2), (Range{3, 7}));
  EXPECT_EQ(index->sequences_of(0), (Range{0, 2}));
  EXPECT_EQ(index->start_of(3), 7);
  EXPECT_EQ(index->sequence_at(2), 0);
  EXPECT_EQ(index->sequence_at(3), 2) << "the empty one before it holds no token";
}

TEST(TokenIndex, a_stream_follows_the_index_and_not_the_file) {
  Parts parts = good();
  parts.pointers = {8, 0, 0};
  const auto bytes = parts.bytes();
  const auto index = TokenIndex::open(bytes, "a.idx", 14);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_FALSE(index->contiguous());
  EXPECT_EQ(index->place(0), (Range{4, 7}));
  EXPECT_EQ(index->start_of(2), 3);
  EXPECT_EQ(index->sequence_at(3), 2);
}

TEST(TokenIndex, may_have_modes_and_no_sequences) {
  Parts parts = good();
  parts.tail = std::string(3, '\0');
  EXPECT_EQ(why_not(parts), "");
  EXPECT_EQ(why_not({.documents = {0}}, 0), "");
}

TEST(TokenIndex, says_what_is_wrong) {
  Parts parts = good();
  parts.magic[0] = 'X';
  EXPECT_THAT(why_not(parts), HasSubstr("'a.idx': this is no Megatron index"));
  parts = good();
  parts.version = 2;
  EXPECT_THAT(why_not(parts), HasSubstr("version 2; this keepstep reads version 1"));
  parts = good();
  parts.type = 7;
  EXPECT_THAT(why_not(parts), HasSubstr("type number 7"));
  parts = good();
  parts.lengths[2] = 5;
  EXPECT_THAT(why_not(parts), HasSubstr("sequence 2 (5 tokens of uint16 at byte 6) lies outside the 14 bytes"));
  parts = good();
  parts.lengths[0] = -1;
  EXPECT_THAT(why_not(parts), HasSubstr("sequence 0 (-1 tokens"));
  parts = good();
  parts.pointers[1] = -2;
  EXPECT_THAT(why_not(parts), HasSubstr("sequence 1"));
  parts = good();
  parts.pointers[2] = 5;
  EXPECT_THAT(why_not(parts), HasSubstr("in the middle of a token"));
  parts = good();
  parts.documents = {0, 3, 2};
  EXPECT_THAT(why_not(parts), HasSubstr("entry 2 of the documents is sequence 2"));
  parts = good();
  parts.documents = {0, 2};
  EXPECT_THAT(why_not(parts), HasSubstr("do not end at sequence 3"));
  parts = good();
  parts.documents = {1, 3};
  EXPECT_THAT(why_not(parts), HasSubstr("entry 0"));
  parts = good();
  parts.documents = {};
  EXPECT_THAT(why_not(parts), HasSubstr("do not end"));
  parts = good();
  parts.tail = "xx";
  EXPECT_THAT(why_not(parts), HasSubstr("2 bytes follow the tables"));
}

TEST(TokenIndex, takes_no_prefix_of_itself_for_an_index) {
  const auto bytes = good().bytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    // A buffer of exactly this size, so that a sanitizer detects any read beyond it.
    const std::vector<std::byte> prefix(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_TRUE(absl::IsInvalidArgument(TokenIndex::open(prefix, "a.idx", 14).status())) << n;
  }
}

TEST(TokenIndex, counts_that_overflow_are_refused) {
  auto bytes = good().bytes();
  for (const size_t at : {18, 26}) {
    for (const uint64_t count : {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} / 12 + 1, uint64_t{4}}) {
      auto broken = bytes;
      std::memcpy(broken.data() + at, &count, sizeof(count));
      EXPECT_FALSE(TokenIndex::open(broken, "a.idx", 14).ok()) << at << " " << count;
    }
  }
}

TEST(TokenType, has_names_and_widths) {
  EXPECT_EQ(narrowest_type(256), TokenType::kUint8);
  EXPECT_EQ(narrowest_type(257), TokenType::kUint16);
  EXPECT_EQ(narrowest_type(65'536), TokenType::kUint16);
  EXPECT_EQ(narrowest_type(65'537), TokenType::kInt32);
  EXPECT_EQ(token_type("uint16").value(), TokenType::kUint16);
  EXPECT_THAT(std::string(token_type("float").status().message()), HasSubstr("those are uint8, int8"));
}

}  // namespace
}  // namespace keepstep::data
