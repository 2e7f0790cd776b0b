#include "state/vault/shard_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace keepstep::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

brain::ShardEntry entry(std::string name, std::vector<uint64_t> shape, std::vector<uint64_t> offsets,
                        std::vector<uint64_t> lengths) {
  return {std::move(name), "float32", 4, std::move(shape), {std::move(offsets), std::move(lengths)}};
}

// Parses one entry with this text, in an otherwise valid manifest.
Status parse_entry(const std::string& text) {
  return parse_shard_manifest(
             absl::StrCat(R"({"format": 1, "version": 5, "shards": [["b", "int8", [2], [0], [2]], )", text, "]}"))
      .status();
}

void expect_refused(const Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(ShardManifest, reads_as_the_header_says) {
  const auto manifest = parse_shard_manifest(
      R"({"format": 1, "version": 118, "shards": [
           ["model/head.weight", "bfloat16", [1024, 512], [256, 0], [256, 512]], ["step", "int64", [], [], []]]})");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->version, 118u);
  EXPECT_THAT(manifest->shards,
              ElementsAre(brain::ShardEntry{"model/head.weight", "bfloat16", 2, {1024, 512}, {{256, 0}, {256, 512}}},
                          brain::ShardEntry{"step", "int64", 8, {}, {{}, {}}}));
  EXPECT_THAT(shard_starts(manifest->shards), ElementsAre(0, 256 * 512 * 2, 256 * 512 * 2 + 8));
}

TEST(ShardManifest, what_is_written_is_read_again) {
  std::mt19937_64 random(17);
  const std::vector<std::string> dtypes = {"float32", "bfloat16", "complex128", "bool", "float8_e4m3fn"};
  for (int round = 0; round < 300; ++round) {
    ShardManifest manifest{random() % 3 == 0 ? kMax : random() % 1000, {}};
    for (uint64_t number = random() % 10; number > 0; --number) {
      const std::string& dtype = dtypes[random() % dtypes.size()];
      brain::ShardEntry one{absl::StrCat("t\"\\/\xc3\xa4", number), dtype, element_bytes(dtype).value(), {}, {}};
      for (uint64_t dimension = random() % 5; dimension > 0; --dimension) {
        one.shape.push_back(random() % 50);
        one.box.offsets.push_back(random() % (one.shape.back() + 1));
        one.box.lengths.push_back(random() % (one.shape.back() - one.box.offsets.back() + 1));
      }
      manifest.shards.push_back(one);
    }
    const auto text = write_shard_manifest(manifest);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto read = parse_shard_manifest(*text);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << *text;
    EXPECT_EQ(*read, manifest);
  }
}

TEST(ShardManifest, an_entry_that_is_wrong_is_named_with_what_is_wrong) {
  expect_refused(parse_entry(R"(["w", "float32", [8, 4], [6, 0], [3, 4]])"),
                 "shards[1] ('w') has offsets [6, 0] and lengths [3, 4], which are no part of the shape [8, 4]");
  expect_refused(parse_entry(R"(["w", "float32", [8], [18446744073709551615], [2]])"), "no part of the shape [8]");
  expect_refused(parse_entry(R"(["w", "float32", [8, 4], [0], [8]])"), "no part of the shape [8, 4]");
  expect_refused(parse_entry(R"(["w", "float32", [8, 4], [0, 0], [8, 4, 1]])"), "no part of the shape [8, 4]");
  expect_refused(parse_entry(R"(["w", "float32", [18446744073709551615, 2], [0, 0], [1, 1]])"),
                 "which no memory can hold");
  expect_refused(parse_entry(R"(["w", "float32", [1152921504606846977], [0], [1]])"), "which no memory can hold");
  expect_refused(parse_entry(R"(["w", "float32", [99999999999999999999], [0], [1]])"),
                 "has 99999999999999999999 for its shape");
  expect_refused(parse_entry(R"(["w", "quint8", [1], [0], [1]])"), "has the dtype 'quint8', which is none");
  expect_refused(parse_entry(R"(["", "int8", [1], [0], [1]])"), "has a name of 0 bytes");
  expect_refused(parse_entry(R"(["a\u0000b", "int8", [1], [0], [1]])"), "control characters");
  expect_refused(
      parse_entry(absl::StrCat(R"([")", std::string(kMaxShardName + 1, 'x'), R"(", "int8", [1], [0], [1]])")),
      "has a name of 4097 bytes");
  expect_refused(parse_entry(R"(["w", "int8", [-1], [0], [1]])"), "has -1 for its shape");
  expect_refused(parse_entry(R"(["w", "int8", [1.5], [0], [1]])"), "has 1.5 for its shape");
  expect_refused(parse_entry(R"(["w", "int8", [[1]], [0], [1]])"), "has a list for its shape");
  expect_refused(parse_entry(R"(["w", "int8", [null], [0], [1]])"), "has null for its shape");
  expect_refused(parse_entry(R"(["w", "int8", [1], [true], [1]])"), "has true for its offsets");
  expect_refused(parse_entry(R"(["w", "int8", [1], [0], ["1"]])"), "has '1' for its lengths");
  expect_refused(parse_entry(R"(["w", "int8", {"a": 1}, [0], [1]])"), "has an object for its shape");
  expect_refused(parse_entry(R"(["w", 3, [1], [0], [1]])"), "has 3 for its dtype");
  expect_refused(parse_entry(R"([["w"], "int8", [1], [0], [1]])"), "has a list for its name");
  expect_refused(parse_entry(R"(["w", "int8", [1], [0]])"), "ends before name, dtype, shape, offsets and lengths came");
  expect_refused(parse_entry(R"(["w", "int8", [1], [0], [1], [1]])"), "has a list for its end");
  expect_refused(parse_entry(R"(["w", "int8", [1], [0], [1], 7])"), "has 7 for its end");
  expect_refused(parse_entry(R"(["b", "int8", [2], [0], [2]])"), "[0:2] of 'b' is listed twice");
  expect_refused(parse_entry(R"(["b", "uint8", [2], [1], [1]])"), "'b' is int8[2] and uint8[2]");
  expect_refused(parse_entry(R"("w")"), "there is 'w' where it has no place");
  std::string dimensions = "1";
  for (size_t dimension = 0; dimension < kMaxShardDimensions; ++dimension) {
    dimensions += ", 1";
  }
  expect_refused(parse_entry(absl::StrCat(R"(["w", "int8", [)", dimensions, "]")), "more than 64 dimensions");
  const std::string half = absl::StrCat("[", uint64_t{1} << 61, "]");
  expect_refused(parse_entry(absl::StrCat(R"(["w", "int8", )", half, ", [0], ", half, R"(], ["v", "int8", )", half,
                                          ", [0], ", half, "]")),
                 "shards[2] ('v') makes the bytes of all parts too many");
}

TEST(ShardManifest, what_is_no_manifest_is_refused) {
  const std::string good = R"({"format": 1, "version": 5, "shards": []})";
  ASSERT_TRUE(parse_shard_manifest(good).ok());
  const auto with = [&](const std::string& from, const std::string& to) {
    return parse_shard_manifest(absl::StrReplaceAll(good, {{from, to}})).status();
  };
  EXPECT_EQ(with("1", "2").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(with("1", "2").message(),
            "shard manifest: it has format 2 and this keepstep reads 1; a newer one wrote it");
  expect_refused(with("1", "0"), "there is no format 0");
  expect_refused(with("1", "\"1\""), "there is '1' where it has no place");
  expect_refused(with("5", "-5"), "there is -5 where it has no place");
  expect_refused(with("[]", "{}"), "there is an object where it has no place");
  expect_refused(with("[]", "[[]]"), "ends before name");
  expect_refused(with("\"version\": 5, ", ""), "there is 'shards' where 'version' should be");
  expect_refused(with("\"shards\": []", "\"version\": 6"), "there is 'version' where 'shards' should be");
  expect_refused(with("[]", "[], \"more\": 1"), "there is 'more' where the end should be");
  expect_refused(with(", \"shards\": []", ""), "it ends before 'format', 'version' and 'shards' came");
  expect_refused(with("}", "} x"), "no JSON from byte 43 on");
  expect_refused(parse_shard_manifest("[]").status(), "there is a list where it has no place");
  expect_refused(parse_shard_manifest("7").status(), "there is 7 where it has no place");
  expect_refused(parse_shard_manifest("").status(), "no JSON");
  expect_refused(parse_shard_manifest(std::string(1 << 20, '[')).status(), "a list where it has no place");
  expect_refused(parse_shard_manifest(std::string(kMaxManifestText + 1, ' ')).status(),
                 "it has 67108865 bytes; at most 67108864 are read");
}

TEST(ShardManifest, more_shards_than_allowed_are_refused_before_they_take_memory) {
  std::string text = R"({"format": 1, "version": 5, "shards": [)";
  for (size_t number = 0; number <= kMaxManifestShards; ++number) {
    absl::StrAppend(&text, number == 0 ? "" : ",", "[\"", number, R"(","int8",[],[],[]])");
  }
  expect_refused(parse_shard_manifest(text + "]}").status(), "there are more than 262144 shards");
}

TEST(ShardManifest, cut_off_anywhere_or_with_any_byte_changed_it_is_refused_or_sound) {
  ShardManifest manifest{118, {}};
  for (uint64_t rank = 0; rank < 3; ++rank) {
    manifest.shards.push_back(entry("model/w", {96, 5}, {32 * rank, 0}, {32, 5}));
  }
  const std::string text = write_shard_manifest(manifest).value();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_shard_manifest(text.substr(0, length)).ok());
  }
  std::mt19937_64 random(19);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string changed = text;
    for (uint64_t count = 1 + random() % 3; count > 0; --count) {
      changed[random() % changed.size()] =
          static_cast<char>(random() % 2 == 0 ? random() : "0123456789,[]\"{}-.e"[random() % 19]);
    }
    const auto read = parse_shard_manifest(changed);
    if (read.ok()) {
      ++accepted;
      for (const brain::ShardEntry& one : read->shards) {
        ASSERT_TRUE(brain::fits(one.box, one.shape));
        ASSERT_EQ(one.element_bytes, element_bytes(one.dtype));
      }
      EXPECT_TRUE(write_shard_manifest(*read).ok());
    }
  }
  EXPECT_GT(accepted, 100) << "some changes are only to numbers";
}

TEST(ShardManifest, what_could_not_be_read_is_not_written) {
  expect_refused(write_shard_manifest({1, {entry("w", {4}, {3}, {2})}}).status(), "no part of the shape");
  expect_refused(write_shard_manifest({1, {entry("\xff", {4}, {0}, {4})}}).status(), "a name that is no UTF-8");
  brain::ShardEntry wrong_size = entry("w", {4}, {0}, {4});
  wrong_size.element_bytes = 2;
  expect_refused(write_shard_manifest({1, {wrong_size}}).status(), "has the dtype 'float32', which is none");
  expect_refused(write_shard_manifest({1, {entry("w", {4}, {0}, {4}), entry("w", {4}, {0}, {4})}}).status(),
                 "listed twice");
}

TEST(ShardManifest, of_two_ranks_makes_a_plan_for_one) {
  std::vector<brain::ShardSource> sources;
  for (uint64_t rank = 0; rank < 2; ++rank) {
    const std::string text = write_shard_manifest({7, {entry("w", {10, 3}, {5 * rank, 0}, {5, 3})}}).value();
    ShardManifest read = parse_shard_manifest(text).value();
    sources.push_back({0, read.version, std::move(read.shards)});
  }
  const std::vector<brain::ShardEntry> needs = {entry("w", {10, 3}, {0, 0}, {10, 3})};
  EXPECT_EQ(brain::newest_whole_version(needs, sources), 7u);
  EXPECT_EQ(brain::plan_reshard(needs, sources, {.version = 7}),
            (std::vector<brain::Pull>{{0, 0, 0, {{0, 0}, {5, 3}}}, {0, 1, 0, {{5, 0}, {5, 3}}}}));
}

}  // namespace
}  // namespace keepstep::state
