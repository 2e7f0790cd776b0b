// What the tests of both stores share: contents, temporary folders, and the contract of every store.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/object_store.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {

// A folder that is gone with it.
struct TestFolder {
  TestFolder() {
    std::string pattern = testing::TempDir() + "keepstep-checkpoint-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

inline std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// `bytes` bytes that follow from `seed`, none of them a repetition of others.
inline std::string content(uint64_t seed, size_t bytes) {
  std::string result(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    for (size_t j = i; j < std::min(bytes, i + 8); ++j) {
      result[j] = static_cast<char>(state >> (8 * (j - i)));
    }
  }
  return result;
}

inline std::vector<std::string> keys_of(const std::vector<ObjectInfo>& listed) {
  std::vector<std::string> keys;
  for (const ObjectInfo& each : listed) {
    keys.push_back(each.key);
  }
  return keys;
}

// Puts, reads, lists and removes through `store`, which must be empty and is empty again afterwards.
inline void expect_the_contract_of_a_store(ObjectStore& store) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;

  ASSERT_TRUE(store.list("").ok()) << store.list("").status();
  EXPECT_THAT(*store.list(""), IsEmpty());
  EXPECT_EQ(store.head("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.read_all("a/b", 100).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store.remove("a/b").ok());
  EXPECT_EQ(store.put("../a", as_span("x"), {}).status().code(), absl::StatusCode::kInvalidArgument);

  // Small objects and conditions.
  const auto first = store.put("run/owner.json", as_span("one"), PutCondition::absent());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto again = store.put("run/owner.json", as_span("two"), PutCondition::absent());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(text_of(again.status()), HasSubstr("must not be there yet"));
  EXPECT_THAT(text_of(again.status()), HasSubstr("3 bytes"));
  const auto second = store.put("run/owner.json", as_span("two!"), PutCondition::matches(*first));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*first, *second);
  const auto late = store.put("run/owner.json", as_span("three"), PutCondition::matches(*first));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(text_of(late.status()), HasSubstr("must still be the version"));
  const auto nothing = store.put("run/nothing", as_span("x"), PutCondition::matches(*first));
  EXPECT_EQ(nothing.status().code(), absl::StatusCode::kAborted) << nothing.status();
  EXPECT_THAT(text_of(nothing.status()), HasSubstr("nothing is there now"));
  const auto read = store.read_all("run/owner.json", 4);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->bytes, "two!");
  EXPECT_EQ(read->etag, *second);
  EXPECT_EQ(store.head("run/owner.json")->etag, *second);
  EXPECT_EQ(store.read_all("run/owner.json", 3).status().code(), absl::StatusCode::kOutOfRange);

  // Large objects, in pieces of odd sizes; one that is given up; an empty one; one that replaces another.
  const std::string large = content(1, (size_t{11} << 20) + 12345);
  {
    auto writer = store.create("run/step-1/__0_0.distcp", large.size());
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (size_t at = 0, piece = 1; at < large.size(); at += piece, piece = piece * 5 + 1) {
      piece = std::min(piece, large.size() - at);
      ASSERT_TRUE((*writer)->append(as_span(std::string_view(large).substr(at, piece))).ok());
    }
    EXPECT_EQ(store.head("run/step-1/__0_0.distcp").status().code(), absl::StatusCode::kNotFound);
    const auto etag = (*writer)->commit();
    ASSERT_TRUE(etag.ok()) << etag.status();
    EXPECT_EQ(store.head("run/step-1/__0_0.distcp")->etag, *etag);
    EXPECT_FALSE((*writer)->append(as_span("more")).ok());
    EXPECT_FALSE((*writer)->commit().ok());
  }
  {
    auto writer = store.create("run/step-1/given-up", 0);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->append(as_span(large)).ok());
  }
  EXPECT_EQ(store.head("run/step-1/given-up").status().code(), absl::StatusCode::kNotFound);
  for (const std::string_view bytes : {"", "x"}) {
    auto writer = store.create("run/step-1/.metadata", 100);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->append(as_span(bytes)).ok());
    ASSERT_TRUE((*writer)->commit().ok());
    EXPECT_EQ(store.read_all("run/step-1/.metadata", 10)->bytes, bytes);
  }

  // Reading ranges.
  for (const auto& [offset, bytes] : std::vector<std::pair<size_t, size_t>>{
           {0, large.size()}, {0, 1}, {large.size() - 1, 1}, {1234567, size_t{9} << 20}, {5, 0}, {large.size(), 0}}) {
    std::string got(bytes, '\0');
    const Status done =
        store.read("run/step-1/__0_0.distcp", offset, std::as_writable_bytes(std::span(got.data(), got.size())));
    EXPECT_TRUE(done.ok()) << done;
    EXPECT_TRUE(got == large.substr(offset, bytes)) << offset << " " << bytes;
  }
  std::string got(10, '\0');
  const auto beyond = store.read("run/step-1/__0_0.distcp", large.size() - 9, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(beyond.code(), absl::StatusCode::kOutOfRange) << beyond;
  EXPECT_THAT(text_of(beyond), HasSubstr(absl::StrFormat("has %d bytes", large.size())));
  EXPECT_EQ(store.read("run/nothing", 0, std::as_writable_bytes(std::span(got))).code(), absl::StatusCode::kNotFound);

  // Listing.
  const std::string odd = "run/step-10/a b+c=d&e%2F'f\".x";
  ASSERT_TRUE(store.put(odd, as_span("odd"), {}).ok());
  EXPECT_EQ(store.read_all(odd, 10)->bytes, "odd");
  EXPECT_THAT(keys_of(*store.list("")),
              ElementsAre("run/owner.json", "run/step-1/.metadata", "run/step-1/__0_0.distcp", odd));
  EXPECT_THAT(keys_of(*store.list("run/step-1")), ElementsAre("run/step-1/.metadata", "run/step-1/__0_0.distcp", odd));
  EXPECT_THAT(keys_of(*store.list("run/step-1/")), ElementsAre("run/step-1/.metadata", "run/step-1/__0_0.distcp"));
  EXPECT_THAT(keys_of(*store.list("run/step-1/__")), ElementsAre("run/step-1/__0_0.distcp"));
  EXPECT_THAT(*store.list("nothing/"), IsEmpty());
  EXPECT_EQ(store.list("run/step-1/__")->at(0).bytes, large.size());
  EXPECT_GT(store.list("run/step-1/__")->at(0).modified_ns, int64_t{1'600'000'000'000'000'000});
  EXPECT_THAT(*store.list_folders(""), ElementsAre("run"));
  EXPECT_THAT(*store.list_folders("run"), ElementsAre("step-1", "step-10"));
  EXPECT_THAT(*store.list_folders("run/step-1"), IsEmpty());
  EXPECT_THAT(*store.list_folders("nothing"), IsEmpty());

  // Removing: folders disappear with their contents.
  const auto all = store.list("");
  for (const ObjectInfo& each : *all) {
    EXPECT_TRUE(store.remove(each.key).ok());
  }
  EXPECT_THAT(*store.list(""), IsEmpty());
  EXPECT_THAT(*store.list_folders(""), IsEmpty());
}

// In each of `rounds` rounds, `writers` threads, each with its own store, put one key at once: exactly one may win, and
// its bytes must be there.
template <typename Open>
void expect_one_winner_a_round(const Open& open, int rounds, int writers, bool replacing) {
  std::vector<std::unique_ptr<ObjectStore>> stores;
  for (int i = 0; i < writers; ++i) {
    stores.push_back(open());
  }
  for (int round = 0; round < rounds; ++round) {
    const std::string key = absl::StrFormat("race/%s-%d", replacing ? "replace" : "create", round);
    PutCondition condition = PutCondition::absent();
    if (replacing) {
      const auto first = stores[0]->put(key, as_span("first"), PutCondition::absent());
      ASSERT_TRUE(first.ok()) << first.status();
      condition = PutCondition::matches(*first);
    }
    std::vector<StatusOr<std::string>> results(writers, absl::UnknownError("not run"));
    std::atomic<int> ready = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < writers; ++i) {
        threads.emplace_back([&, i] {
          const std::string mine = absl::StrFormat("written by %d", i);
          ++ready;
          while (ready < writers) {
            std::this_thread::yield();
          }
          results[i] = stores[i]->put(key, as_span(mine), condition);
        });
      }
    }
    int winner = -1;
    int winners = 0;
    for (int i = 0; i < writers; ++i) {
      if (results[i].ok()) {
        winner = i;
        ++winners;
      } else {
        EXPECT_EQ(results[i].status().code(), absl::StatusCode::kAborted) << results[i].status();
      }
    }
    ASSERT_EQ(winners, 1) << "round " << round;
    const auto there = stores[0]->read_all(key, 100);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(there->bytes, absl::StrFormat("written by %d", winner));
    EXPECT_EQ(there->etag, *results[winner]);
  }
}

}  // namespace keepstep::checkpoint
