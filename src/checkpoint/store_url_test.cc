#include "checkpoint/store_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/object_store.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(StoreUrlTest, a_folder_is_an_absolute_path) {
  EXPECT_EQ(std::get<FileUrl>(*parse_store_url("file:///data/run")).folder, "/data/run");
  EXPECT_EQ(std::get<FileUrl>(*parse_store_url("file:///data/run//")).folder, "/data/run");
  EXPECT_EQ(std::get<FileUrl>(*parse_store_url("file:///")).folder, "/");
  EXPECT_EQ(std::get<FileUrl>(*parse_store_url("file:///my%20runs/100%25")).folder, "/my runs/100%");
}

TEST(StoreUrlTest, a_bucket_has_a_prefix_and_parameters) {
  const S3Url plain = std::get<S3Url>(*parse_store_url("s3://models"));
  EXPECT_EQ(plain.bucket, "models");
  EXPECT_EQ(plain.prefix, "");
  const S3Url url = std::get<S3Url>(*parse_store_url(
      "s3://models/team/run%201/?endpoint=http%3A%2F%2F127.0.0.1:9000&region=eu-west-1&addressing=virtual&profile=x"));
  EXPECT_EQ(url.prefix, "team/run 1/");
  EXPECT_EQ(url.endpoint, "http://127.0.0.1:9000");
  EXPECT_EQ(url.region, "eu-west-1");
  EXPECT_EQ(url.addressing, "virtual");
  EXPECT_EQ(url.profile, "x");
}

TEST(StoreUrlTest, memory_has_a_name_and_perhaps_a_drain) {
  const MemoryUrl plain = std::get<MemoryUrl>(*parse_store_url("memory://run-1.a_b"));
  EXPECT_EQ(plain.name, "run-1.a_b");
  EXPECT_EQ(plain.drain, "");
  const MemoryUrl drained = std::get<MemoryUrl>(*parse_store_url(
      "memory://run?drain=s3%3A%2F%2Fbucket%2Frun%3Fregion%3Dx%26endpoint%3Dhttp%3A%2F%2Fh%3A1&drain_keep=3"));
  EXPECT_EQ(drained.drain, "s3://bucket/run?region=x&endpoint=http://h:1");
  EXPECT_EQ(drained.drain_keep, 3);
}

struct Wrong {
  const char* url;
  const char* says;
};

class WrongStoreUrlTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongStoreUrlTest, is_refused_and_says_how_it_should_be) {
  const auto parsed = parse_store_url(GetParam().url);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(All, WrongStoreUrlTest,
                         testing::Values(Wrong{"/data/run", "file:///folder, s3://bucket/prefix or memory://NAME"},
                                         Wrong{"", "no known kind"}, Wrong{"gs://bucket", "no known kind"},
                                         Wrong{"memory://4711", "a letter and then"},
                                         Wrong{"memory://run?drain=memory%3A%2F%2Fb", "drains into memory"},
                                         Wrong{"memory://run?drain=/data", "no known kind"},
                                         Wrong{"memory://run?drain_keep=3", "no drain"},
                                         Wrong{"memory://run?keep=3", "known are drain, drain_keep"},
                                         Wrong{"file://data/run", "three slashes"}, Wrong{"file:///a/../b", "'..'"},
                                         Wrong{"file:///a%2", "two hexadecimal digits"},
                                         Wrong{"file:///a%00b", "zero byte"}, Wrong{"file:///a?b", "%3F"},
                                         Wrong{"s3://", "names no bucket"}, Wrong{"s3:///prefix", "names no bucket"},
                                         Wrong{"s3://b", "names no bucket"}, Wrong{"s3://bucket/a//b", "empty part"},
                                         Wrong{"s3://bucket/../b", "'.' or '..'"},
                                         Wrong{"s3://bucket/a?zone=x", "known are region, endpoint"},
                                         Wrong{"s3://bucket/a?region=x&region=y", "'region' twice"},
                                         Wrong{"s3://bucket/a?region=", "no value for 'region'"},
                                         Wrong{"s3://bucket?endpoint=host:9000", "begins neither with http://"},
                                         Wrong{"s3://bucket?endpoint=http://host:9000/path", "no path"},
                                         Wrong{"s3://bucket?endpoint=http://me:secret@host", "no user"},
                                         Wrong{"s3://bucket?http=yes", "an http that is not 'allow'"},
                                         Wrong{"s3://bucket?addressing=dns", "neither 'path' nor 'virtual'"}));

TEST(StoreUrlTest, a_secret_in_it_is_not_repeated) {
  const auto parsed = parse_store_url("s3://bucket/a?secret_key=hunter2");
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(std::string(parsed.status().message()), Not(HasSubstr("hunter2")));
}

TEST(StoreUrlTest, percent_encoding_is_the_one_of_sigv4) {
  EXPECT_EQ(percent_encoded("a b/c~d-e_f.g+h=i&j%k", true), "a%20b/c~d-e_f.g%2Bh%3Di%26j%25k");
  EXPECT_EQ(percent_encoded("a/b", false), "a%2Fb");
  for (int c = 1; c < 256; ++c) {
    const std::string text(1, static_cast<char>(c));
    EXPECT_EQ(*percent_decoded(percent_encoded(text, false)), text);
  }
}

TEST(KeyTest, only_names_that_stay_below_the_root_can_be_keys) {
  for (const std::string key : {"a", ".metadata", "step-000000000123/__0_0.distcp", "a/b.c/d e", "..a", "a..", "~"}) {
    EXPECT_TRUE(check_key(key).ok()) << key;
  }
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."), std::string("a/.."),
        std::string("../a"), std::string("a/./b"), std::string("a\nb"), std::string("a\0b", 3), std::string("a\\b"),
        std::string("caf\xc3\xa9"), std::string(256, 'a'), std::string(kMaxKeyBytes + 1, 'a'),
        std::string(".keepstep-partial/lock"), std::string("a/.keepstep-x")}) {
    const Status fit = check_key(key);
    EXPECT_EQ(fit.code(), absl::StatusCode::kInvalidArgument) << key;
  }
}

}  // namespace
}  // namespace keepstep::checkpoint
