#include "rank/link/log_ring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace keepstep::rank {
namespace {

using brain::Step;

struct Entry {
  Step step = 0;
  std::string values;  // empty: a commit
  bool operator==(const Entry&) const = default;
};

class LogRingTest : public testing::Test {
 protected:
  LogRingTest() : memory_(zeroed()), writer_(memory_.get()) {}
  ~LogRingTest() override {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(memory_.get()[kLogRingBytes + i], std::byte{0}) << "somebody wrote past the ring";
    }
  }
  static std::byte* zeroed() {
    return static_cast<std::byte*>(
        std::memset(std::aligned_alloc(4096, kLogRingBytes + kGuard), 0, kLogRingBytes + kGuard));
  }
  LogRingHeader& header() { return *reinterpret_cast<LogRingHeader*>(memory_.get()); }
  std::byte* data() { return memory_.get() + 4096; }

  Status collect(std::vector<Entry>& into) {
    return reader_.collect(
        memory_.get(), [&](const CommitRecord& record) { into.push_back({record.step, ""}); },
        [&](Step step, std::string_view values) { into.push_back({step, std::string(values)}); });
  }
  std::vector<Entry> collect() {
    std::vector<Entry> found;
    const Status status = collect(found);
    EXPECT_TRUE(status.ok()) << status;
    return found;
  }
  // Writes an entry's header as a broken worker could have left it, at byte `at` of all bytes ever written.
  void forge(uint64_t at, uint32_t kind, uint32_t bytes) {
    const uint32_t entry[2] = {kind, bytes};
    std::memcpy(data() + at % kLogRingDataBytes, entry, sizeof entry);
  }

  static constexpr size_t kGuard = 4096;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  LogWriter writer_;
  LogReader reader_;
};

TEST_F(LogRingTest, what_is_written_is_read_once_and_in_order) {
  EXPECT_TRUE(collect().empty());
  writer_.commit({.step = 1});
  writer_.log(1, R"({"x": 1})");
  writer_.log(2, "");
  writer_.commit({.step = 2});
  EXPECT_EQ(collect(), (std::vector<Entry>{{1, ""}, {1, R"({"x": 1})"}, {2, ""}, {2, ""}}));
  EXPECT_TRUE(collect().empty());
}

TEST_F(LogRingTest, a_commit_comes_with_all_that_it_says) {
  const CommitRecord nothing{.step = 7, .identity = {1, 3}, .committed_ns = 5};
  const CommitRecord diverged{.step = uint64_t{1} << 40,
                              .identity = {4'000'000'000, 9},
                              .committed_ns = -1,
                              .has_loss = true,
                              .loss_sum = -std::numeric_limits<double>::infinity(),
                              .micro_batches = 12,
                              .has_mean = true,
                              .mean = std::numeric_limits<double>::quiet_NaN(),
                              .digest = brain::StepDigest{~uint64_t{0}, 0}};
  writer_.commit(nothing);
  writer_.commit(diverged);
  std::vector<CommitRecord> found;
  ASSERT_TRUE(reader_.collect(memory_.get(), [&](const CommitRecord& r) { found.push_back(r); }, nullptr).ok());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 7u);
  EXPECT_EQ(found[0].identity, nothing.identity);
  EXPECT_EQ(found[0].committed_ns, 5);
  EXPECT_FALSE(found[0].has_loss);
  EXPECT_FALSE(found[0].has_mean);
  EXPECT_EQ(found[0].digest, std::nullopt);
  EXPECT_EQ(found[1].step, diverged.step);
  EXPECT_EQ(found[1].identity, diverged.identity);
  EXPECT_TRUE(found[1].has_loss);
  EXPECT_EQ(found[1].loss_sum, diverged.loss_sum);
  EXPECT_EQ(found[1].micro_batches, 12u);
  EXPECT_TRUE(found[1].has_mean);
  EXPECT_TRUE(std::isnan(found[1].mean));
  EXPECT_EQ(found[1].digest, diverged.digest);
}

TEST_F(LogRingTest, entries_of_every_length_survive_the_end_of_the_ring) {
  std::mt19937 random(17);
  for (Step step = 1; step <= 3000; ++step) {
    const size_t bytes = step % 50 == 0 ? kMaxLogTextBytes - random() % 9 : random() % 700;
    const std::string values(bytes, static_cast<char>('a' + step % 26));
    writer_.log(step, values);
    writer_.commit({.step = step});
    ASSERT_EQ(collect(), (std::vector<Entry>{{step, values}, {step, ""}})) << "step " << step;
  }
  EXPECT_GT(header().head.load(), 5 * kLogRingDataBytes);
}

TEST_F(LogRingTest, a_full_ring_has_no_room_until_it_is_read) {
  Step step = 0;
  while (writer_.has_room()) {
    writer_.log(++step, std::string(1000, 'x'));
  }
  EXPECT_GT(step, 100u);
  EXPECT_LE(header().head.load(), kLogRingDataBytes);
  EXPECT_FALSE(writer_.has_room());
  EXPECT_EQ(collect().size(), step);
  EXPECT_TRUE(writer_.has_room());
  writer_.log(step + 1, "{}");
  EXPECT_EQ(collect(), (std::vector<Entry>{{step + 1, "{}"}}));
}

TEST_F(LogRingTest, a_writer_that_waits_for_room_loses_nothing_to_a_reader_beside_it) {
  constexpr Step kSteps = 20'000;
  std::thread writing([&] {
    for (Step step = 1; step <= kSteps; ++step) {
      while (!writer_.has_room()) {
        writer_.wait_for_room();
      }
      writer_.log(step, std::string(step % 300, 'x'));
    }
  });
  Step next = 1;
  while (next <= kSteps) {
    for (const Entry& entry : collect()) {
      ASSERT_EQ(entry.step, next);
      ASSERT_EQ(entry.values, std::string(next % 300, 'x'));
      ++next;
    }
  }
  writing.join();
  EXPECT_TRUE(collect().empty());
}

TEST_F(LogRingTest, an_entry_that_a_killed_worker_did_not_finish_is_not_there) {
  writer_.commit({.step = 1});
  const uint64_t head = header().head.load();
  writer_.log(2, R"({"half": true})");
  header().head.store(head);  // killed before it could announce the entry
  EXPECT_EQ(collect(), (std::vector<Entry>{{1, ""}}));
  EXPECT_TRUE(collect().empty());
}

TEST_F(LogRingTest, a_length_that_reaches_beyond_what_is_written_is_refused_and_reading_goes_on) {
  for (const uint32_t bytes :
       {uint32_t{17}, uint32_t{4096}, uint32_t{kLogRingDataBytes}, uint32_t{0xffff'fff9}, uint32_t{0xffff'ffff}}) {
    const uint64_t at = header().head.load();
    writer_.log(5, "12345678");  // a body of 16 bytes
    forge(at, 2, bytes);
    std::vector<Entry> found;
    EXPECT_FALSE(collect(found).ok()) << bytes;
    EXPECT_TRUE(found.empty()) << bytes;
    writer_.log(6, "{}");
    EXPECT_EQ(collect(), (std::vector<Entry>{{6, "{}"}})) << bytes;
  }
}

TEST_F(LogRingTest, a_kind_that_is_none_or_a_body_too_short_for_its_kind_is_refused) {
  const std::pair<uint32_t, uint32_t> bad[] = {{0, 16}, {3, 16}, {1, 16}, {2, 7}, {2, 0}, {0xffff'ffff, 16}};
  for (const auto& [kind, bytes] : bad) {
    const uint64_t at = header().head.load();
    writer_.log(5, "12345678");
    forge(at, kind, bytes);
    std::vector<Entry> found;
    EXPECT_FALSE(collect(found).ok()) << kind << " " << bytes;
    EXPECT_TRUE(found.empty());
  }
  writer_.commit({.step = 9});
  EXPECT_EQ(collect(), (std::vector<Entry>{{9, ""}}));
}

TEST_F(LogRingTest, an_entry_longer_than_any_may_be_is_refused) {
  header().head.store(kLogRingDataBytes);
  forge(0, 2, kMaxLogTextBytes + 9);
  std::vector<Entry> found;
  EXPECT_FALSE(collect(found).ok());
  EXPECT_TRUE(found.empty());
}

TEST_F(LogRingTest, a_head_from_nowhere_is_refused_once_and_gives_nothing) {
  for (const uint64_t head :
       {uint64_t{kLogRingDataBytes + 8}, uint64_t{13}, uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{3}}) {
    header().head.store(head);
    std::vector<Entry> found;
    EXPECT_FALSE(collect(found).ok()) << head;
    EXPECT_TRUE(collect(found).ok()) << "it says the same as before";
    EXPECT_TRUE(found.empty()) << head;
  }
}

TEST_F(LogRingTest, a_tail_that_the_worker_moved_changes_nothing_for_the_reader) {
  writer_.commit({.step = 1});
  EXPECT_EQ(collect().size(), 1u);
  header().tail.store(0);
  writer_.commit({.step = 2});
  EXPECT_EQ(collect(), (std::vector<Entry>{{2, ""}})) << "nothing comes twice";
}

TEST_F(LogRingTest, no_bytes_whatever_crash_the_reader) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t before = header().head.load();
    for (size_t i = 0; i < 512; i += 8) {
      // Small numbers: lengths and kinds that may just pass the checks.
      const uint64_t word = random() % 3 == 0 ? random() : (random() % 80) << 32 | random() % 4;
      std::memcpy(data() + (before + i) % (kLogRingDataBytes - 8), &word, sizeof word);
    }
    header().head.store(before + random() % 520);
    std::vector<Entry> found;
    (void)collect(found);
    for (const Entry& entry : found) {
      EXPECT_LE(entry.values.size(), 520u);
    }
  }
}

}  // namespace
}  // namespace keepstep::rank
