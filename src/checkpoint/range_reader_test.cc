// Boxes of tensors from files in chunks, compared byte by byte with a gather that copies one element at a time.
#include "checkpoint/range_reader.h"

#include <numeric>
#include <random>

#include "checkpoint/file_recipe.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<ObjectStore> open_at(const std::string& path) {
  return std::move(open_store("file://" + path)).value();
}

StoredFile written(ObjectStore& store, const std::string& name, const std::string& bytes) {
  FileRecipe recipe;
  recipe.pieces.emplace_back(bytes.substr(0, bytes.size() / 3));
  recipe.pieces.emplace_back(as_span(bytes).subspan(bytes.size() / 3));
  const auto sums = write_file(store, "a/" + name, recipe);
  EXPECT_TRUE(sums.ok()) << sums.status();
  return {name, sums->bytes, sums->chunks};
}

void corrupt(const std::string& path, size_t at) {
  FILE* file = fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  fseek(file, static_cast<long>(at), SEEK_SET);
  const int byte = fgetc(file);
  fseek(file, static_cast<long>(at), SEEK_SET);
  fputc(byte ^ 0x40, file);
  fclose(file);
}

TEST(RangeReader, RandomBoxesAreThoseOfAGather) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const std::string bytes = content(1, 3 * kChunkBytes + 4321);
  const StoredFiles stored{.sources = {{store, "a/"}}, .files = {written(*store, "f", bytes)}};
  const uint64_t seed = 20;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(absl::StrFormat("seed %d, round %d", seed, round));
    const size_t dims = random() % 5;
    const uint32_t width = 1U << random() % 4;
    BoxRead box{.element_bytes = width};
    uint64_t part = width;
    uint64_t elements = 1;
    for (size_t i = 0; i < dims; ++i) {
      // Occasionally a dimension that makes the part span several chunks.
      const uint64_t most = std::min<uint64_t>(round % 3 == 0 ? 2000 : 20, (2 * kChunkBytes) / part);
      const auto length = static_cast<int64_t>(1 + random() % most);
      const auto from = static_cast<int64_t>(random() % static_cast<uint64_t>(length));
      const auto count = static_cast<int64_t>(random() % 8 == 0 ? 0 : 1 + random() % (length - from));
      box.part_lengths.push_back(length);
      box.offsets.push_back(random() % 3 == 0 ? 0 : from);
      box.lengths.push_back(box.offsets.back() == 0 && random() % 2 == 0 ? length : count);
      part *= static_cast<uint64_t>(length);
      elements *= static_cast<uint64_t>(box.lengths.back());
    }
    box.data = random() % (bytes.size() - part + 1);
    // Memory with gaps, and with its dimensions in any order except the innermost.
    std::vector<size_t> order(dims);
    std::iota(order.begin(), order.end(), 0);
    if (dims > 1) {
      std::shuffle(order.begin(), order.end() - 1, random);
    }
    box.strides.assign(dims, 0);
    uint64_t reach = width;
    for (size_t i = dims; i-- > 0;) {
      box.strides[order[i]] = static_cast<int64_t>(reach);
      reach *= static_cast<uint64_t>(std::max<int64_t>(1, box.lengths[order[i]]));
      reach += i < dims - 1 || dims == 1 ? random() % 2 * width : 0;
    }
    std::string memory(reach + width, '#');
    std::string expected = memory;
    for (uint64_t n = 0; n < elements; ++n) {
      uint64_t rest = n;
      uint64_t in_part = 0;
      uint64_t in_memory = 0;
      uint64_t stride = width;
      for (size_t i = dims; i-- > 0;) {
        const uint64_t at = rest % static_cast<uint64_t>(box.lengths[i]);
        rest /= static_cast<uint64_t>(box.lengths[i]);
        in_part += (at + static_cast<uint64_t>(box.offsets[i])) * stride;
        stride *= static_cast<uint64_t>(box.part_lengths[i]);
        in_memory += at * static_cast<uint64_t>(box.strides[i]);
      }
      expected.replace(in_memory, width, bytes, box.data + in_part, width);
    }
    box.into = reinterpret_cast<std::byte*>(memory.data());
    const auto tally = read_boxes(stored, {&box, 1}, 1 + random() % 3);
    ASSERT_TRUE(tally.ok()) << tally.status();
    ASSERT_TRUE(memory == expected);
    EXPECT_EQ(tally->chunks == 0, elements == 0);
  }
}

TEST(RangeReader, OnlyChunksWithSomeOfTheBoxAreRead) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const std::string bytes = content(2, 8 * kChunkBytes);
  const StoredFiles stored{.sources = {{store, "a/"}}, .files = {written(*store, "f", bytes)}};
  std::string memory(2 * 8, '\0');
  // A column of a matrix with two rows of four chunks each.
  const BoxRead box{.file = 0,
                    .data = 0,
                    .element_bytes = 8,
                    .part_lengths = {2, int64_t{4 * kChunkBytes / 8}},
                    .offsets = {0, 5},
                    .lengths = {2, 1},
                    .into = reinterpret_cast<std::byte*>(memory.data()),
                    .strides = {8, 8}};
  const auto tally = read_boxes(stored, {&box, 1}, 2);
  ASSERT_TRUE(tally.ok()) << tally.status();
  EXPECT_EQ(tally->chunks, 2U);
  EXPECT_EQ(memory, bytes.substr(40, 8) + bytes.substr(4 * kChunkBytes + 40, 8));
}

TEST(RangeReader, ACorruptChunkIsNamedOrReadElsewhere) {
  const TestFolder folder;
  const TestFolder other_folder;
  const auto store = open_at(folder.path);
  const auto other = open_at(other_folder.path);
  const std::string bytes = content(3, 2 * kChunkBytes + 100);
  const StoredFile file = written(*store, "f", bytes);
  written(*other, "f", bytes);
  corrupt(folder.path + "/a/f", kChunkBytes + 50);
  std::string memory(bytes.size(), '\0');
  const auto length = static_cast<int64_t>(bytes.size());
  const BoxRead box{.part_lengths = {length},
                    .offsets = {0},
                    .lengths = {length},
                    .into = reinterpret_cast<std::byte*>(memory.data()),
                    .strides = {1}};
  const auto alone = read_boxes({.sources = {{store, "a/"}}, .files = {file}}, {&box, 1}, 2);
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(text_of(alone.status()), HasSubstr("chunk 1 of 'a/f' (bytes 4194304 to 8388608) is corrupt"));

  const auto both = read_boxes({.sources = {{store, "a/"}, {other, "a/"}}, .files = {file}}, {&box, 1}, 2);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->elsewhere, 1U);
  EXPECT_TRUE(memory == bytes);

  ASSERT_EQ(truncate((folder.path + "/a/f").c_str(), 100), 0);
  const auto cut = read_boxes({.sources = {{store, "a/"}}, .files = {file}}, {&box, 1}, 1);
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(text_of(cut.status()), HasSubstr("'a/f' is truncated: it should have 8388708 bytes"));
  ASSERT_TRUE(store->remove("a/f").ok());
  EXPECT_EQ(read_boxes({.sources = {{store, "a/"}}, .files = {file}}, {&box, 1}, 1).status().code(),
            absl::StatusCode::kNotFound);
  memory.assign(memory.size(), '\0');
  ASSERT_TRUE(read_boxes({.sources = {{store, "a/"}, {other, "a/"}}, .files = {file}}, {&box, 1}, 1).ok());
  EXPECT_TRUE(memory == bytes);
}

TEST(RangeReader, BoxesThatCannotBeAreRefused) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const StoredFiles stored{.sources = {{store, "a/"}}, .files = {written(*store, "f", content(4, 100))}};
  std::string memory(1000, '\0');
  const auto refused = [&](BoxRead box) {
    box.into = reinterpret_cast<std::byte*>(memory.data());
    return read_boxes(stored, {&box, 1}, 1).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.file = 1}));
  EXPECT_TRUE(refused({.data = 100}));
  EXPECT_TRUE(refused({.part_lengths = {101}, .offsets = {0}, .lengths = {1}, .strides = {1}}));
  EXPECT_TRUE(refused({.part_lengths = {10}, .offsets = {5}, .lengths = {6}, .strides = {1}}));
  EXPECT_TRUE(refused({.part_lengths = {10}, .offsets = {-1}, .lengths = {6}, .strides = {1}}));
  EXPECT_TRUE(refused({.part_lengths = {10}, .offsets = {0}, .lengths = {6}, .strides = {2}}));
  EXPECT_TRUE(
      refused({.part_lengths = {INT64_MAX, INT64_MAX}, .offsets = {0, 0}, .lengths = {1, 1}, .strides = {1, 1}}));
}

}  // namespace
}  // namespace keepstep::checkpoint
