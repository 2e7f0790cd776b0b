#include "data/corpus/token_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/checksum.h"
#include "data/corpus/token_writer.h"

namespace keepstep::data {
namespace {

class TokenScanTest : public testing::Test {
 protected:
  TokenScanTest() {
    char name[] = "/tmp/keepstep-scan-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~TokenScanTest() override { std::filesystem::remove_all(folder_); }
  std::string prefix(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(TokenScanTest, least_greatest_and_checksum_are_those_of_the_file_whatever_the_steps) {
  for (const TokenType type : {TokenType::kInt8, TokenType::kUint16, TokenType::kInt32, TokenType::kInt64}) {
    auto writer = TokenWriter::create(prefix("a"), type, true);
    ASSERT_TRUE(writer.ok());
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 5000; ++i) {
      tokens.push_back(3 + i * 7919 % 101);
    }
    tokens[4321] = type == TokenType::kUint16 ? 1 : -5;
    ASSERT_TRUE((*writer)->add(tokens).ok());
    ASSERT_TRUE((*writer)->finish().ok());
    std::ifstream stream(prefix("a.bin"), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_EQ((*writer)->checksum(), checksum(bytes.data(), bytes.size()));
    const auto corpus = TokenCorpus::open(prefix("a"));
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    for (const uint64_t step : {1, 777, 1 << 20}) {
      TokenScan scan(*corpus);
      while (*scan.step(step)) {
      }
      EXPECT_EQ(scan.position(), corpus->bytes());
      EXPECT_EQ(scan.least(), type == TokenType::kUint16 ? 1 : -5);
      EXPECT_EQ(scan.greatest(), 103);
      EXPECT_EQ(scan.checksum(), (*writer)->checksum());
    }
  }
}

TEST_F(TokenScanTest, bytes_become_tokens_of_every_type_that_holds_them) {
  const std::string text = "a\xC3\xA9" + std::string(5'000'000, 'z');  // larger than the writer's buffer
  for (const TokenType type : {TokenType::kUint8, TokenType::kUint16, TokenType::kInt64}) {
    auto writer = TokenWriter::create(prefix("b"), type, true);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->add_bytes(text, 7).ok());
    ASSERT_TRUE((*writer)->finish(false).ok());
    const auto corpus = TokenCorpus::open(prefix("b"));
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    std::vector<int64_t> expected(text.size() + 1);
    std::transform(text.begin(), text.end(), expected.begin(), [](char c) { return static_cast<uint8_t>(c); });
    expected.back() = 7;
    std::vector<int64_t> tokens(corpus->index().tokens());
    ASSERT_TRUE(corpus->read(0, tokens.size(), tokens.data()).ok());
    EXPECT_EQ(tokens, expected);
  }
  auto narrow = TokenWriter::create(prefix("c"), TokenType::kInt8, true);
  EXPECT_FALSE((*narrow)->add_bytes("\xC3\xA9", -1).ok());
  EXPECT_FALSE((*narrow)->add_bytes("a", 128).ok());
  EXPECT_EQ((*narrow)->tokens(), 0);
}

}  // namespace
}  // namespace keepstep::data
