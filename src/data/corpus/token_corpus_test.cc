#include "data/corpus/token_corpus.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "data/corpus/token_writer.h"

namespace keepstep::data {
namespace {

using testing::HasSubstr;

class TokenCorpusTest : public testing::Test {
 protected:
  TokenCorpusTest() {
    char name[] = "/tmp/keepstep-corpus-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~TokenCorpusTest() override { std::filesystem::remove_all(folder_); }

  std::string prefix(const std::string& name = "corpus") const { return folder_ + "/" + name; }
  std::string file(const std::string& name) const {
    std::ifstream stream(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::string folder_;
};

using Documents = std::vector<std::vector<int64_t>>;

void write(const std::string& prefix, TokenType type, const Documents& documents, bool overwrite = false) {
  auto writer = TokenWriter::create(prefix, type, overwrite);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& document : documents) {
    ASSERT_TRUE((*writer)->add(document).ok());
    (*writer)->end_document();
  }
  const Status finished = (*writer)->finish();
  ASSERT_TRUE(finished.ok()) << finished;
}

TEST_F(TokenCorpusTest, reads_what_was_written_with_every_type) {
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kUint16,
                               TokenType::kInt32, TokenType::kInt64}) {
    const std::string name = prefix(name_of(type));
    write(name, type, {{1, 2, 3}, {}, {100, 0, 127, 5}});
    const auto corpus = TokenCorpus::open(name);
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    EXPECT_EQ(corpus->index().type(), type);
    EXPECT_EQ(corpus->index().documents(), 3);
    std::vector<int64_t> tokens(5);
    ASSERT_TRUE(corpus->read(1, 5, tokens.data()).ok());
    EXPECT_EQ(tokens, (std::vector<int64_t>{2, 3, 100, 0, 127}));
  }
}

TEST_F(TokenCorpusTest, numbers_keep_their_sign_and_their_top_bit) {
  write(prefix("signed"), TokenType::kInt16, {{-32'768, -1, 32'767}});
  write(prefix("unsigned"), TokenType::kUint16, {{65'535, 32'768}});
  std::vector<int64_t> tokens(3);
  ASSERT_TRUE(TokenCorpus::open(prefix("signed"))->read(0, 3, tokens.data()).ok());
  EXPECT_EQ(tokens, (std::vector<int64_t>{-32'768, -1, 32'767}));
  tokens.resize(2);
  ASSERT_TRUE(TokenCorpus::open(prefix("unsigned"))->read(0, 2, tokens.data()).ok());
  EXPECT_EQ(tokens, (std::vector<int64_t>{65'535, 32'768}));
}

// Compared with the straightforward way, with sequences in any order in the file.
TEST_F(TokenCorpusTest, every_part_of_a_stream_is_the_plain_one) {
  std::mt19937_64 random(7);
  Documents documents;
  std::vector<int64_t> stream;
  std::vector<int64_t> owner;
  std::vector<int64_t> position;
  for (int i = 0; i < 40; ++i) {
    auto& document = documents.emplace_back(random() % 3 == 0 ? 0 : random() % 20);
    for (size_t at = 0; at < document.size(); ++at) {
      document[at] = static_cast<int64_t>(random() % 60'000);
      stream.push_back(document[at]);
      owner.push_back(i);
      position.push_back(static_cast<int64_t>(at));
    }
  }
  write(prefix(), TokenType::kUint16, documents);
  const auto plain = TokenCorpus::open(prefix());
  ASSERT_TRUE(plain->index().contiguous());

  // The same stream with its two halves swapped in the file.
  std::string bin = file("corpus.bin");
  std::string idx = file("corpus.idx");
  const size_t half = bin.size() / 4 * 2;
  size_t cut = 0;  // the first sequence that begins at or after `half`
  auto* pointers = idx.data() + TokenIndex::kHeaderBytes + 40 * sizeof(int32_t);
  const auto pointer = [&](size_t i) {
    int64_t value;
    std::memcpy(&value, pointers + i * 8, 8);
    return value;
  };
  while (pointer(cut) < static_cast<int64_t>(half)) {
    ++cut;
  }
  const int64_t at = pointer(cut);
  for (size_t i = 0; i < 40; ++i) {
    const int64_t moved = i < cut ? pointer(i) + static_cast<int64_t>(bin.size()) - at : pointer(i) - at;
    std::memcpy(pointers + i * 8, &moved, 8);
  }
  std::ofstream(prefix("swapped") + ".bin", std::ios::binary) << bin.substr(at) << bin.substr(0, at);
  std::ofstream(prefix("swapped") + ".idx", std::ios::binary) << idx;
  const auto swapped = TokenCorpus::open(prefix("swapped"));
  ASSERT_TRUE(swapped.ok()) << swapped.status();
  ASSERT_FALSE(swapped->index().contiguous());

  for (uint64_t begin = 0; begin <= stream.size(); ++begin) {
    const uint64_t count = random() % (stream.size() - begin + 1);
    for (const auto* corpus : {&*plain, &*swapped}) {
      std::vector<int64_t> tokens(count, -1);
      std::vector<int64_t> sequences(count, -1);
      std::vector<int64_t> positions(count, -1);
      ASSERT_TRUE(corpus->read(begin, count, tokens.data()).ok());
      ASSERT_TRUE(corpus->describe(begin, count, sequences.data(), positions.data()).ok());
      int64_t number = 0;
      uint64_t first = 0;
      for (uint64_t i = 0; i < count; ++i) {
        if (i > 0 && owner[begin + i] != owner[begin + i - 1]) {
          ++number;
          first = i;
        }
        ASSERT_EQ(tokens[i], stream[begin + i]) << begin << "+" << i;
        ASSERT_EQ(sequences[i], number) << begin << "+" << i;
        ASSERT_EQ(positions[i], static_cast<int64_t>(i - first)) << begin << "+" << i;
      }
    }
  }
}

TEST_F(TokenCorpusTest, a_prefix_may_end_with_either_name) {
  write(prefix(), TokenType::kUint8, {{1}});
  EXPECT_TRUE(TokenCorpus::open(prefix() + ".bin").ok());
  EXPECT_TRUE(TokenCorpus::open(prefix() + ".idx").ok());
  EXPECT_THAT(std::string(TokenCorpus::open(prefix("other")).status().message()), HasSubstr("other.idx"));
}

TEST_F(TokenCorpusTest, truncated_tokens_are_an_error_that_names_both) {
  write(prefix(), TokenType::kInt32, {{1, 2}, {3}});
  std::filesystem::resize_file(prefix() + ".bin", 11);
  EXPECT_THAT(std::string(TokenCorpus::open(prefix()).status().message()),
              HasSubstr("sequence 1 (1 tokens of int32 at byte 8) lies outside the 11 bytes"));
}

TEST_F(TokenCorpusTest, a_file_that_shrinks_under_its_readers_is_lost_and_nothing_crashes) {
  write(prefix(), TokenType::kInt32, {std::vector<int64_t>(100'000, 7)});
  const auto corpus = TokenCorpus::open(prefix());
  ASSERT_TRUE(corpus.ok());
  std::vector<int64_t> tokens(100'000);
  ASSERT_TRUE(corpus->read(0, tokens.size(), tokens.data()).ok());
  std::filesystem::resize_file(prefix() + ".bin", 4096);
  ASSERT_TRUE(corpus->read(0, 1024, tokens.data()).ok()) << "what is still there is read";
  const Status status = corpus->read(0, tokens.size(), tokens.data());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("corpus.bin' had 400000 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("it has 4096 bytes now"));
  EXPECT_EQ(tokens[0], 7);
  EXPECT_EQ(tokens.back(), 0);
}

TEST_F(TokenCorpusTest, an_index_that_shrinks_or_changes_leads_nowhere) {
  write(prefix(), TokenType::kInt32, Documents(3'000, {1, 2, 3}));
  std::filesystem::rename(prefix() + ".bin", prefix() + ".old");
  std::ofstream(prefix() + ".bin", std::ios::binary) << std::string(12, '\0') << file("corpus.old");
  // Not contiguous, so that it follows the pointers.
  std::string idx = file("corpus.idx");
  for (size_t i = 0; i < 3'000; ++i) {
    const int64_t moved = static_cast<int64_t>(i + 1) * 12;
    std::memcpy(idx.data() + TokenIndex::kHeaderBytes + 3'000 * 4 + i * 8, &moved, 8);
  }
  std::ofstream(prefix() + ".idx", std::ios::binary) << idx;
  const auto corpus = TokenCorpus::open(prefix());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  std::vector<int64_t> tokens(9'000);
  ASSERT_TRUE(corpus->read(0, tokens.size(), tokens.data()).ok());
  EXPECT_EQ(tokens[8'999], 3);
  // Overwritten in place with values that point far outside.
  const int fd = ::open((prefix() + ".idx").c_str(), O_WRONLY);
  const std::vector<int64_t> wild(1'000, int64_t{1} << 40);
  ASSERT_GT(pwrite(fd, wild.data(), 8'000, TokenIndex::kHeaderBytes + 3'000 * 4), 0);
  EXPECT_TRUE(absl::IsDataLoss(corpus->read(0, tokens.size(), tokens.data())));
  ASSERT_EQ(ftruncate(fd, 100), 0);
  ::close(fd);
  EXPECT_FALSE(corpus->read(0, tokens.size(), tokens.data()).ok());
  std::vector<int64_t> places(9'000);
  (void)corpus->describe(0, tokens.size(), tokens.data(), places.data());
}

// ---- the writer ----

TEST_F(TokenCorpusTest, a_token_that_does_not_fit_is_refused_and_the_type_that_would_is_named) {
  auto writer = TokenWriter::create(prefix(), TokenType::kUint16, false);
  ASSERT_TRUE(writer.ok());
  const std::vector<int64_t> tokens{1, 70'000};
  const Status status = (*writer)->add(tokens);
  EXPECT_TRUE(absl::IsOutOfRange(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("token 70000 is not one of uint16, which holds 0 to 65535"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(int32)"));
  EXPECT_EQ((*writer)->tokens(), 0);
  EXPECT_FALSE((*writer)->add_bytes("a", 1 << 20).ok());
}

TEST_F(TokenCorpusTest, text_is_its_bytes_and_an_end) {
  for (const TokenType type : {TokenType::kUint8, TokenType::kUint16}) {
    auto writer = TokenWriter::create(prefix(), type, true);
    ASSERT_TRUE((*writer)->add_bytes("a\xff", 0).ok());
    (*writer)->end_document();
    ASSERT_TRUE((*writer)->add_bytes("", -1).ok());
    (*writer)->end_document();
    ASSERT_TRUE((*writer)->finish().ok());
    const auto corpus = TokenCorpus::open(prefix());
    std::vector<int64_t> tokens(3);
    ASSERT_TRUE(corpus->read(0, 3, tokens.data()).ok());
    EXPECT_EQ(tokens, (std::vector<int64_t>{'a', 255, 0}));
    EXPECT_EQ(corpus->index().documents(), 2);
  }
}

TEST_F(TokenCorpusTest, a_writer_that_does_not_finish_leaves_what_was_there) {
  write(prefix(), TokenType::kUint8, {{1, 2}});
  const std::string before = file("corpus.bin") + file("corpus.idx");
  EXPECT_TRUE(absl::IsAlreadyExists(TokenWriter::create(prefix(), TokenType::kUint8, false).status()));
  {
    auto writer = TokenWriter::create(prefix(), TokenType::kUint8, true);
    ASSERT_TRUE((*writer)->add(std::vector<int64_t>{9}).ok());
  }
  EXPECT_EQ(file("corpus.bin") + file("corpus.idx"), before);
  EXPECT_EQ(names(), (std::vector<std::string>{"corpus.bin", "corpus.idx"}));
  write(prefix(), TokenType::kUint8, {{9}}, true);
  EXPECT_EQ(file("corpus.bin"), "\t");
}

TEST_F(TokenCorpusTest, a_full_disk_is_an_error_and_leaves_nothing) {
  auto writer = TokenWriter::create("/dev/shm/keepstep-no-such-folder/corpus", TokenType::kUint8, false);
  EXPECT_TRUE(absl::IsNotFound(writer.status())) << writer.status();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    auto full = TokenWriter::create(prefix(), TokenType::kUint8, false);
    ASSERT_TRUE(full.ok());
    Status status = (*full)->add_bytes(std::string(3 << 20, 'x'), -1);
    if (status.ok()) {
      status = (*full)->finish();
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("corpus.bin.partial"));
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(names().empty());
}

TEST_F(TokenCorpusTest, corpora_are_joined_whole) {
  write(prefix("a"), TokenType::kUint16, {{1, 2}, {3}});
  write(prefix("b"), TokenType::kUint16, {{}, {4, 5, 6}});
  write(prefix("c"), TokenType::kInt32, {{7}});
  auto writer = TokenWriter::create(prefix(), TokenType::kUint16, false);
  ASSERT_TRUE((*writer)->append(prefix("a")).ok());
  ASSERT_TRUE((*writer)->append(prefix("b")).ok());
  EXPECT_THAT(std::string((*writer)->append(prefix("c")).status().message()), HasSubstr("tokens of int32"));
  ASSERT_TRUE((*writer)->finish().ok());
  write(prefix("all"), TokenType::kUint16, {{1, 2}, {3}, {}, {4, 5, 6}});
  EXPECT_EQ(file("corpus.bin"), file("all.bin"));
  EXPECT_EQ(file("corpus.idx"), file("all.idx"));
}

TEST_F(TokenCorpusTest, parts_may_go_once_they_are_in_and_another_writer_goes_on) {
  const Documents documents[] = {{{1, 2}, {3}}, {{4}, {5, 6}}, {{}, {7, 8, 9}}};
  const std::string parts[] = {prefix("p0"), prefix("p1"), prefix("p2")};
  Documents all;
  for (size_t i = 0; i < 3; ++i) {
    write(parts[i], TokenType::kUint16, documents[i]);
    all.insert(all.end(), documents[i].begin(), documents[i].end());
  }
  write(prefix("all"), TokenType::kUint16, all);
  const std::string joined = prefix("joined");
  uint64_t checksums[2];
  {
    auto killed = TokenWriter::join(prefix(), joined, TokenType::kUint16);
    ASSERT_TRUE(killed.ok()) << killed.status();
    checksums[0] = *(*killed)->append(parts[0]);
    checksums[1] = *(*killed)->append(parts[1]);
    ASSERT_TRUE((*killed)->append(parts[2]).ok());
    ASSERT_TRUE((*killed)->sync().ok());
  }
  std::filesystem::remove(parts[0] + ".bin");  // the others were not deleted yet
  auto writer = TokenWriter::join(prefix(), joined, TokenType::kUint16);
  EXPECT_EQ(*(*writer)->take_over(parts[0], 6), checksums[0]);
  EXPECT_EQ(*(*writer)->append(parts[1]), checksums[1]);
  ASSERT_TRUE((*writer)->append(parts[2]).ok());
  ASSERT_TRUE((*writer)->finish().ok());
  EXPECT_EQ(file("corpus.bin"), file("all.bin"));
  EXPECT_EQ(file("corpus.idx"), file("all.idx"));
  EXPECT_FALSE(std::filesystem::exists(joined));
}

TEST_F(TokenCorpusTest, what_is_not_in_the_joined_file_is_not_taken_over) {
  write(prefix("part"), TokenType::kUint8, {{1, 2, 3, 4}});
  auto writer = TokenWriter::join(prefix(), prefix("joined"), TokenType::kUint8);
  const auto absent = (*writer)->take_over(prefix("part"), 4);
  EXPECT_TRUE(absl::IsDataLoss(absent.status())) << absent.status();
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("joined' ends 4 bytes before the end of"));
  EXPECT_FALSE((*writer)->take_over(prefix("part"), 3).ok()) << "its index says four";
  EXPECT_FALSE((*writer)->take_over(prefix("nowhere"), 4).ok());
  auto other = TokenWriter::join(prefix(), prefix("joined"), TokenType::kUint8);
  const uint64_t right = *(*other)->append(prefix("part"));
  ASSERT_TRUE((*other)->sync().ok());
  std::ofstream(prefix("joined"), std::ios::binary) << std::string("\1\2\3\5");  // as after a power loss
  auto third = TokenWriter::join(prefix(), prefix("joined"), TokenType::kUint8);
  EXPECT_NE(*(*third)->take_over(prefix("part"), 4), right);
}

}  // namespace
}  // namespace keepstep::data
