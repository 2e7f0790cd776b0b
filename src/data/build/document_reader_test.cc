#include "data/build/document_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

namespace keepstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Texts = std::vector<std::string>;

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class DocumentReaderTest : public testing::Test {
 protected:
  DocumentReaderTest() {
    char name[] = "/tmp/keepstep-reader-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~DocumentReaderTest() override { std::filesystem::remove_all(folder_); }

  Piece file(const std::string& bytes, Format format, Compression compression = Compression::kNone) {
    const std::string path = folder_ + "/input";
    std::ofstream(path, std::ios::binary) << bytes;
    return {path, format, compression, std::nullopt};
  }

  struct All {
    Texts texts;
    Status status;
    ReadCounts counts;
    Texts complaints;
  };
  static All read(const Piece& piece, bool skip = false) {
    All all;
    auto reader = DocumentReader::open(piece, "text", skip);
    if (!reader.ok()) {
      all.status = reader.status();
      return all;
    }
    while (true) {
      const auto text = reader->next();
      if (!text.ok() || !*text) {
        all.status = text.status();
        break;
      }
      all.texts.emplace_back(**text);
    }
    all.counts = reader->counts();
    all.complaints = reader->complaints();
    return all;
  }

  std::string folder_;
};

std::string many_lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += absl::StrFormat(R"({"id": %d, "text": "line %d \u00e9 %s"})", i, i, std::string(i % 300, 'x')) + "\n";
  }
  return lines;
}

TEST_F(DocumentReaderTest, json_lines_are_read_with_escapes_blank_lines_and_a_mark_at_the_start) {
  const All all =
      read(file("\xEF\xBB\xBF{\"text\": \"a\\n\\u00e9\\\"\"}\r\n\n  \n{\"a\": {\"text\": 1}, \"text\": \"b\"}",
                Format::kJsonLines));
  EXPECT_TRUE(all.status.ok()) << all.status;
  EXPECT_THAT(all.texts, ElementsAre("a\n\xC3\xA9\"", "b"));
}

TEST_F(DocumentReaderTest, ranges_of_a_file_share_its_lines_and_leave_none_out) {
  const std::string lines = many_lines(3000);
  Piece piece = file(lines, Format::kJsonLines);
  const Texts whole = read(piece).texts;
  ASSERT_EQ(whole.size(), 3000);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Texts parts;
    uint64_t begin = 0;
    while (begin < lines.size()) {
      const uint64_t end = std::min<uint64_t>(lines.size(), begin + 1 + random() % (lines.size() / 5));
      piece.range = Range{begin, end};
      const All all = read(piece);
      ASSERT_TRUE(all.status.ok()) << all.status;
      parts.insert(parts.end(), all.texts.begin(), all.texts.end());
      begin = end;
    }
    EXPECT_EQ(parts, whole);
  }
}

TEST_F(DocumentReaderTest, a_line_that_is_longer_than_its_ranges_is_read_once) {
  const std::string text(std::string(3'000'000, 'y'));
  const std::string lines = "{\"text\": \"" + text + "\"}\n{\"text\": \"z\"}\n";
  Piece piece = file(lines, Format::kJsonLines);
  Texts parts;
  for (uint64_t begin = 0; begin < lines.size(); begin += 500'000) {
    piece.range = Range{begin, std::min<uint64_t>(lines.size(), begin + 500'000)};
    const All all = read(piece);
    ASSERT_TRUE(all.status.ok()) << all.status;
    parts.insert(parts.end(), all.texts.begin(), all.texts.end());
  }
  EXPECT_THAT(parts, ElementsAre(text, "z"));
}

TEST_F(DocumentReaderTest, what_is_wrong_names_file_and_line_also_in_a_range) {
  std::string lines;
  uint64_t middle = 0;
  for (int i = 1; i <= 9000; ++i) {
    middle = i == 5000 ? lines.size() + 3 : middle;  // in the middle of line 5000
    lines += i == 8123 ? "{\"text\": \"x\", }\n" : "{\"text\": \"x\"}\n";
  }
  Piece piece = file(lines, Format::kJsonLines);
  const std::string where = "'" + piece.path + "' line 8123: broken JSON";
  EXPECT_THAT(std::string(read(piece).status.message()), HasSubstr(where));
  piece.range = Range{middle, lines.size()};
  EXPECT_THAT(std::string(read(piece).status.message()), HasSubstr(where));
  piece.range.reset();
  const All skipped = read(piece, true);
  EXPECT_TRUE(skipped.status.ok()) << skipped.status;
  EXPECT_EQ(skipped.texts.size(), 8999);
  EXPECT_EQ(skipped.counts.unreadable, 1);
  ASSERT_EQ(skipped.complaints.size(), 1);
  EXPECT_THAT(skipped.complaints[0], HasSubstr(where));
}

TEST_F(DocumentReaderTest, fields_that_are_missing_or_no_text_are_named) {
  EXPECT_THAT(std::string(read(file("{\"content\": \"x\", \"id\": 3}", Format::kJsonLines)).status.message()),
              HasSubstr("line 1: no field 'text'; it has content, id. Choose with --field"));
  EXPECT_THAT(std::string(read(file("{\"text\": null}", Format::kJsonLines)).status.message()),
              HasSubstr("field 'text' is no string"));
  EXPECT_THAT(std::string(read(file("\n[1]", Format::kJsonLines)).status.message()),
              HasSubstr("line 2: this JSON is no object"));
}

TEST_F(DocumentReaderTest, text_that_is_no_utf8_is_found_in_every_format) {
  EXPECT_THAT(std::string(read(file("{\"text\": \"a\"}\n{\"text\": \"\xE4\"}\n", Format::kJsonLines)).status.message()),
              HasSubstr("line 2: no valid UTF-8"));
  EXPECT_THAT(std::string(read(file("[{\"text\":\n \"\xE4\"}]", Format::kJson)).status.message()),
              HasSubstr("line 2: no valid UTF-8"));
  EXPECT_THAT(std::string(read(file("a\nb\n\xE4\n", Format::kText)).status.message()),
              HasSubstr("line 3: no valid UTF-8"));
  const All lines = read(file("a\nb\n\xE4\nc", Format::kTextLines), true);
  EXPECT_THAT(lines.texts, ElementsAre("a", "b", "c"));
  EXPECT_THAT(lines.complaints[0], HasSubstr("line 3: no valid UTF-8"));
}

TEST_F(DocumentReaderTest, documents_without_text_are_left_out_and_counted) {
  const All all = read(file("{\"text\": \"\"}\n{\"text\": \"a\"}\n{\"text\": \"\"}\n", Format::kJsonLines));
  EXPECT_THAT(all.texts, ElementsAre("a"));
  EXPECT_EQ(all.counts.empty, 2);
  EXPECT_EQ(read(file("", Format::kText)).counts.empty, 1);
  EXPECT_EQ(read(file("", Format::kJson)).counts.documents, 0);
}

TEST_F(DocumentReaderTest, json_is_an_array_or_values_that_follow_one_another) {
  const Texts expected = {"a]}", "b\"[", "c"};
  EXPECT_EQ(read(file("[\n {\"text\": \"a]}\"},\n{\"x\": [[\"}\"]], \"text\": \"b\\\"[\"} , {\"text\": \"c\"} ]\n",
                      Format::kJson))
                .texts,
            expected);
  EXPECT_EQ(read(file("{\n\"text\": \"a]}\"}{\"text\": \"b\\\"[\"}\n{\"text\": \"c\"}", Format::kJson)).texts,
            expected);
  std::string array = "[";
  for (int i = 0; i < 20'000; ++i) {
    array += (i > 0 ? ",\n" : "") + absl::StrFormat(R"({"text": "%d %s"})", i, std::string(i % 500, 'q'));
  }
  EXPECT_EQ(read(file(array + "]", Format::kJson)).texts.size(), 20'000);
}

TEST_F(DocumentReaderTest, broken_json_files_say_where) {
  const auto message = [&](const std::string& json) {
    return std::string(read(file(json, Format::kJson)).status.message());
  };
  EXPECT_THAT(message("[{\"text\": \"a\"}\n,{\"text\": \"b\"}"), HasSubstr("line 2: the file ends inside its array"));
  EXPECT_THAT(message("[{\"text\": \"a\"},\n{\"text\": \"b"), HasSubstr("line 2: broken JSON"));
  EXPECT_THAT(message("[{\"text\": \"a\"}\n{\"text\": \"b\"}]"), HasSubstr("line 2: broken JSON (a '{'"));
  EXPECT_THAT(message("[{\"text\": \"a\"}]\n]"), HasSubstr("line 2: broken JSON (a ']'"));
  EXPECT_THAT(message("[{\"text\": \"a\", }]"), HasSubstr("line 1: broken JSON"));
  EXPECT_THAT(message("[3]"), HasSubstr("is no object"));
}

TEST_F(DocumentReaderTest, compressed_files_may_have_several_members) {
  const std::string one = many_lines(5000);
  const std::string two = many_lines(100);
  for (const auto& [bytes, compression] :
       {std::pair(gzip(one) + gzip("") + gzip(two) + std::string(512, '\0'), Compression::kGzip),
        std::pair(zstd(one) + zstd("") + zstd(two), Compression::kZstd)}) {
    const All all = read(file(bytes, Format::kJsonLines, compression));
    EXPECT_TRUE(all.status.ok()) << all.status;
    EXPECT_EQ(all.texts.size(), 5100);
  }
}

TEST_F(DocumentReaderTest, truncated_and_damaged_files_are_errors_and_skipping_keeps_what_came_before) {
  const std::string lines = many_lines(5000);
  for (const auto& [bytes, compression] :
       {std::pair(gzip(lines), Compression::kGzip), std::pair(zstd(lines), Compression::kZstd)}) {
    for (const size_t cut : {size_t{0}, size_t{1}, size_t{5}, bytes.size() / 2, bytes.size() - 1}) {
      const All all = read(file(bytes.substr(0, bytes.size() - cut), Format::kJsonLines, compression));
      if (cut == 0) {
        EXPECT_TRUE(all.status.ok()) << all.status;
      } else {
        EXPECT_THAT(std::string(all.status.message()), HasSubstr("is truncated")) << cut;
        const All skipped = read(file(bytes.substr(0, bytes.size() - cut), Format::kJsonLines, compression), true);
        EXPECT_TRUE(skipped.status.ok());
        EXPECT_EQ(skipped.counts.unreadable, 1);
        EXPECT_EQ(skipped.texts, all.texts);
      }
    }
    std::string damaged = bytes;
    damaged[bytes.size() / 2] ^= 0x55;
    damaged[bytes.size() / 2 + 1] ^= 0x55;
    EXPECT_FALSE(read(file(damaged, Format::kJsonLines, compression)).status.ok());
  }
  EXPECT_THAT(std::string(read(file("no gzip at all", Format::kText, Compression::kGzip)).status.message()),
              HasSubstr("damaged gzip data"));
}

TEST_F(DocumentReaderTest, errors_of_the_system_are_never_skipped) {
  EXPECT_THAT(
      std::string(read({folder_ + "/none", Format::kText, Compression::kNone, std::nullopt}, true).status.message()),
      HasSubstr("none"));
  EXPECT_FALSE(read({folder_, Format::kText, Compression::kNone, std::nullopt}, true).status.ok());
}

}  // namespace
}  // namespace keepstep::data
