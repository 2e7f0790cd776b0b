// The small parts of S3 that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/s3/digests.h"
#include "checkpoint/s3/retry.h"
#include "checkpoint/s3/xml.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(DigestsTest, they_are_those_of_the_standards) {
  const auto bytes = as_span("123456789");
  EXPECT_EQ(crc32c_base64(bytes), "4waSgw==");  // e3069283, the check value of CRC-32C
  EXPECT_EQ(crc32c_base64({}), "AAAAAA==");
  EXPECT_EQ(md5_hex(bytes), "25f9e794323b453885f5181f1b624d0b");
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::vector<std::string> parts(2, "25f9e794323b453885f5181f1b624d0b");
  EXPECT_EQ(etag_of_parts(parts), "4f2908c19b573e50b194e208c928de17-2");
  EXPECT_EQ(etag_of_parts(std::vector<std::string>{"not-an-md5"}), "");
  EXPECT_EQ(unquoted("\"x\""), "x");
  EXPECT_EQ(unquoted("x"), "x");
}

TEST(RetriesTest, pauses_are_anything_up_to_a_bound_that_doubles) {
  constexpr milliseconds kBounds[] = {milliseconds(100), milliseconds(200), milliseconds(400), milliseconds(500),
                                      milliseconds(500)};
  std::vector<std::pair<milliseconds, milliseconds>> seen(5, {milliseconds(1'000'000), milliseconds(0)});
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    RetryBudget budget;
    Retries retries({.tries = 6, .longest_pause = milliseconds(500)}, budget, seed);
    for (int i = 0; i < 5; ++i) {
      const auto decision = retries.failed(milliseconds(0), std::nullopt);
      ASSERT_TRUE(decision.again);
      ASSERT_LE(decision.pause, kBounds[i]);
      seen[i] = {std::min(seen[i].first, decision.pause), std::max(seen[i].second, decision.pause)};
    }
    const auto last = retries.failed(milliseconds(0), std::nullopt);
    EXPECT_FALSE(last.again);
    EXPECT_EQ(last.because, "tried 6 times");
  }
  for (int i = 0; i < 5; ++i) {  // full jitter: across the whole range
    EXPECT_LT(seen[i].first, kBounds[i] / 20);
    EXPECT_GT(seen[i].second, kBounds[i] * 19 / 20);
  }
}

TEST(RetriesTest, what_a_server_asks_for_is_the_least_and_must_fit_into_the_time) {
  RetryBudget budget;
  Retries retries({.give_up_after = milliseconds(10'000)}, budget, 1);
  EXPECT_GE(retries.failed(milliseconds(0), milliseconds(3'000)).pause, milliseconds(3'000));
  const auto late = retries.failed(milliseconds(8'000), milliseconds(3'000));
  EXPECT_FALSE(late.again);
  EXPECT_THAT(late.because, HasSubstr("the server asks for a pause of 3000 ms"));
}

TEST(RetriesTest, the_budget_is_shared_and_comes_back_with_success) {
  RetryBudget budget;
  for (int i = 0; i < RetryBudget::kFull / RetryBudget::kRetry; ++i) {
    EXPECT_TRUE(budget.take());
  }
  EXPECT_FALSE(budget.take());
  for (int i = 0; i < RetryBudget::kRetry; ++i) {
    EXPECT_FALSE(budget.take());
    budget.succeeded();
  }
  EXPECT_TRUE(budget.take());
  for (int i = 0; i < 10'000; ++i) {
    budget.succeeded();
  }
  for (int i = 0; i < RetryBudget::kFull / RetryBudget::kRetry; ++i) {
    EXPECT_TRUE(budget.take());
  }
  EXPECT_FALSE(budget.take());  // never above full
}

TEST(XmlTest, names_are_without_namespaces_and_text_is_decoded) {
  const auto xml = Xml::parse(
      "<?xml version='1.0'?><s3:List "
      "xmlns:s3='x'><s3:Key>a&amp;b&lt;&#x26;</s3:Key><Empty/><K>1</K><O/><K>2</K></s3:List>");
  ASSERT_TRUE(xml.ok());
  EXPECT_EQ(xml->root().name(), "List");
  EXPECT_EQ(xml->root().text("Key"), "a&b<&");
  EXPECT_EQ(xml->root().text("Empty"), "");
  EXPECT_EQ(xml->root().text("None"), "");
  EXPECT_FALSE(xml->root().child("None").child("Deeper").valid());
  EXPECT_EQ(xml->root().child("None").text("Deeper"), "");
  EXPECT_TRUE(xml->root().child("K").next("K").valid());
  EXPECT_FALSE(xml->root().child("K").next("K").next("K").valid());
  EXPECT_EQ(xml_escaped("a&b<c>\"d"), "a&amp;b&lt;c&gt;&quot;d");
}

TEST(XmlTest, what_is_no_whole_document_is_refused) {
  std::string bomb = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]><x><y>&b;</y></x>";
  const auto expanded = Xml::parse(bomb);
  EXPECT_TRUE(!expanded.ok() || expanded->root().text("y").size() < 10);  // entities are never expanded
  const std::string whole = "<a><b>text</b></a>";
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    EXPECT_FALSE(Xml::parse(whole.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(Xml::parse("Service Unavailable").ok());
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) {
    deep += "<a>";
  }
  EXPECT_FALSE(Xml::parse(deep).ok());
  for (uint64_t seed = 0; seed < 2'000; ++seed) {  // arbitrary bytes
    std::string damaged = whole + bomb;
    const std::string noise = content(seed, 16);
    for (size_t i = 0; i + 1 < noise.size(); i += 2) {
      damaged[static_cast<unsigned char>(noise[i]) % damaged.size()] = noise[i + 1];
    }
    const auto parsed = Xml::parse(damaged);
    if (parsed.ok()) {
      (void)parsed->root().text("b");
    }
  }
}

}  // namespace
}  // namespace keepstep::checkpoint
