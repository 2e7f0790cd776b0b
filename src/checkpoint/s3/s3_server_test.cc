// Against a real S3 server, started from outside (by tests/python_checkpoint/test_s3_servers.py, for example): skipped
// unless KEEPSTEP_TEST_S3 is the URL of an empty bucket on it, with its credentials in the environment.
#include <cstdlib>
#include <functional>
#include <random>

#include "checkpoint/s3/fault_server.h"
#include "checkpoint/s3/listing.h"
#include "checkpoint/s3/s3_store.h"
#include "checkpoint/s3/s3_writer.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class S3ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* url = std::getenv("KEEPSTEP_TEST_S3");
    if (url == nullptr) {
      GTEST_SKIP() << "KEEPSTEP_TEST_S3 names no server";
    }
    url_ = url;
  }

  // The bucket, below a prefix used by this test alone.
  std::string url_below(const std::string& prefix) const {
    const size_t question = url_.find('?');
    return absl::StrFormat("%s/%s%s", url_.substr(0, question), prefix, url_.substr(question));
  }
  std::unique_ptr<ObjectStore> open(const std::string& prefix, const StoreOptions& options = {}) const {
    return std::move(open_store(url_below(prefix), options)).value();
  }
  // A client like the store's.
  std::unique_ptr<S3Client> client(const std::string& prefix) const {
    const S3Url url = std::get<S3Url>(*parse_store_url(url_below(prefix)));
    CredentialOptions credentials{.environment = [](const char* name) -> const char* { return std::getenv(name); }};
    return std::make_unique<S3Client>(S3Location{.bucket = url.bucket,
                                                 .prefix = url.prefix,
                                                 .region = url.region,
                                                 .endpoint = url.endpoint,
                                                 .virtual_host = url.addressing == "virtual",
                                                 .ca_file = url.ca_file},
                                      credentials, StoreOptions{});
  }
  std::string url_;
};

constexpr uint64_t kPart = 5 << 20;

TEST_F(S3ServerTest, it_keeps_the_contract_of_a_store) {
  const auto store = open("contract");
  expect_the_contract_of_a_store(*store);
}

TEST_F(S3ServerTest, a_large_object_goes_up_in_parts_and_comes_back_the_same) {
  StoreOptions options;
  options.part_bytes = kPart;
  const auto store = open("large", options);
  const std::string bytes = content(7, 4 * kPart + 999);
  auto writer = store->create("a/large", bytes.size());
  ASSERT_TRUE(writer.ok());
  for (size_t at = 0; at < bytes.size(); at += 3'000'000) {
    ASSERT_TRUE((*writer)->append(as_span(std::string_view(bytes).substr(at, 3'000'000))).ok());
  }
  const auto etag = (*writer)->commit();
  ASSERT_TRUE(etag.ok()) << etag.status();
  EXPECT_THAT(*etag, HasSubstr("-5"));  // five parts
  const auto there = store->read_all("a/large", bytes.size());
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_TRUE(there->bytes == bytes);
  EXPECT_EQ(there->etag, *etag);
  EXPECT_TRUE(store->remove("a/large").ok());
}

TEST_F(S3ServerTest, listings_of_several_pages_are_whole) {
  const auto store = open("pages");
  const auto asking = client("pages");
  constexpr int kObjects = 57;
  for (int i = 0; i < kObjects; ++i) {
    const auto put = store->put(absl::StrFormat("step %02d/x+y", i), as_span("x"), {});
    ASSERT_TRUE(put.ok()) << put.status();
  }
  for (const int page : {1, 10, 19, 1000}) {
    const auto listed = list_objects(*asking, "step ", page);
    ASSERT_TRUE(listed.ok()) << listed.status();
    const auto folders = list_common_prefixes(*asking, "", page);
    ASSERT_TRUE(folders.ok()) << folders.status();
    ASSERT_EQ(listed->size(), size_t{kObjects}) << page;
    ASSERT_EQ(folders->size(), size_t{kObjects}) << page;
    for (int i = 0; i < kObjects; ++i) {
      EXPECT_EQ((*listed)[i].key, absl::StrFormat("step %02d/x+y", i));
      EXPECT_EQ((*folders)[i], absl::StrFormat("step %02d", i));
    }
  }
}

TEST_F(S3ServerTest, a_killed_writers_parts_are_taken_up_unless_their_bytes_are_others) {
  const std::string bytes = content(3, 4 * kPart + 5);
  std::string changed = bytes;
  changed[kPart + 17] ^= 1;
  for (const bool same : {true, false}) {
    const std::string prefix = same ? "killed-same" : "killed-other";
    // A process killed after three parts: libcurl must not be used on both sides of a fork, so this one only drops the
    // writer as a kill would, without giving up the upload.
    {
      const auto first = client(prefix);
      auto writer = std::make_unique<S3Writer>(*first, "a", kPart, 2);
      ASSERT_TRUE(writer->append(as_span(std::string_view(bytes).substr(0, 4 * kPart))).ok());
      const auto uploads = list_uploads(*first, "a");
      ASSERT_TRUE(uploads.ok()) << uploads.status();
      ASSERT_EQ(uploads->list.size(), 1u);
      while (list_parts(*first, "a", uploads->list[0].id, 2)->size() < 3) {  // on two pages
        std::this_thread::yield();
      }
      first->interrupt();
      EXPECT_FALSE(writer->append(as_span(bytes)).ok());
      EXPECT_EQ(list_uploads(*client(prefix), "a")->list.size(), 1u);
    }
    const auto second = client(prefix);
    S3Writer writer(*second, "a", kPart, 2);
    const std::string& now = same ? bytes : changed;
    ASSERT_TRUE(writer.append(as_span(now)).ok());
    const auto etag = writer.commit();
    ASSERT_TRUE(etag.ok()) << etag.status();
    EXPECT_EQ(writer.parts_kept(), same ? 3 : 2);
    EXPECT_TRUE(open(prefix)->read_all("a", now.size())->bytes == now);
    EXPECT_EQ(list_uploads(*second, "a")->list.size(), 0u);
  }
}

TEST_F(S3ServerTest, uploads_never_completed_are_leftovers) {
  const auto store = open("leftovers");
  const auto first = client("leftovers");
  {
    auto writer = std::make_unique<S3Writer>(*first, "run/a", kPart, 1);
    ASSERT_TRUE(writer->append(as_span(content(1, kPart + 1))).ok());
    first->interrupt();
    EXPECT_FALSE(writer->commit().ok());
  }
  // The whole key: MinIO lists uploads only by whole key, and removes old ones itself.
  EXPECT_EQ(*store->remove_leftovers("run/a", std::chrono::hours(1)), 0u);
  EXPECT_EQ(*store->remove_leftovers("run/b", std::chrono::seconds(0)), 0u);
  EXPECT_EQ(*store->remove_leftovers("run/a", std::chrono::seconds(0)), 1u);
  EXPECT_EQ(*store->remove_leftovers("run/a", std::chrono::seconds(0)), 0u);
}

TEST_F(S3ServerTest, a_dropped_writer_leaves_nothing) {
  const auto watching = client("dropped");
  {
    S3Writer writer(*watching, "a", kPart, 2);
    ASSERT_TRUE(writer.append(as_span(content(1, 2 * kPart + 1))).ok());
    EXPECT_EQ(list_uploads(*watching, "a")->list.size(), 1u);
  }
  EXPECT_EQ(list_uploads(*watching, "a")->list.size(), 0u);
}

TEST_F(S3ServerTest, a_wrong_secret_an_unknown_key_a_missing_bucket_and_another_region_are_told_apart) {
  const auto with = [&](const char* name, const char* value) {
    StoreOptions options;
    options.environment = [=](const char* asked) -> const char* {
      return std::string_view(asked) == name ? value : std::getenv(asked);
    };
    return options;
  };
  const Status secret = open("x", with("AWS_SECRET_ACCESS_KEY", "wrong"))->list("").status();
  EXPECT_EQ(secret.code(), absl::StatusCode::kPermissionDenied) << secret;
  EXPECT_THAT(text_of(secret), HasSubstr("the secret key from the environment"));
  const Status key = open("x", with("AWS_ACCESS_KEY_ID", "nobody"))->list("").status();
  EXPECT_EQ(key.code(), absl::StatusCode::kPermissionDenied) << key;
  EXPECT_THAT(text_of(key), HasSubstr("does not know the access key"));
  std::string url = url_below("x");
  url.replace(url.find("//") + 2, url.find('/', url.find("//") + 2) - url.find("//") - 2, "there-is-none");
  const Status bucket = (*open_store(url))->list("").status();
  EXPECT_EQ(bucket.code(), absl::StatusCode::kFailedPrecondition) << bucket;
  EXPECT_THAT(text_of(bucket), HasSubstr("no such bucket"));
  url = url_below("x");
  const size_t region = url.find("region=") + 7;
  const std::string right = url.substr(region, url.find('&', region) - region);
  url.replace(region, right.size(), "eu-north-7");
  const Status elsewhere = (*open_store(url))->list("").status();
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kFailedPrecondition) << elsewhere;
  EXPECT_THAT(text_of(elsewhere), HasSubstr(absl::StrFormat("add region=%s", right)));
}

TEST_F(S3ServerTest, a_certificate_that_nobody_vouches_for_is_not_trusted) {
  const size_t ca = url_.find("&ca_file=");
  if (ca == std::string::npos) {
    return;  // a server without TLS
  }
  const Status listed = (*open_store(url_.substr(0, ca)))->list("").status();
  EXPECT_EQ(listed.code(), absl::StatusCode::kFailedPrecondition) << listed;
  EXPECT_THAT(text_of(listed), HasSubstr("name those to trust by ca_file="));
}

// The server behind a proxy that corrupts requests and answers, following a seed.
class SpoiledS3ServerTest : public S3ServerTest {
 protected:
  // What happens to the next request: most are forwarded. While `gone_`, every one is dropped.
  PlannedAnswer next(const SeenRequest& request) {
    const uint64_t dice = [&] {
      const std::lock_guard lock(mutex_);
      return gone_ ? 100 : random_() % 100;
    }();
    if (dice < 70) {
      return forwarded(request, upstream_);
    }
    ++spoiled_;
    if (dice < 75 || dice == 100) {
      return {.drop = true};
    }
    if (dice < 80) {
      (void)forwarded(request, upstream_);
      return {.drop = true};  // carried out, but the client cannot know
    }
    if (dice < 85) {
      PlannedAnswer answer = forwarded(request, upstream_);
      answer.cut_after = answer.body.size() / 2;
      return answer;
    }
    if (dice < 90) {
      return s3_error(500, "InternalError");
    }
    if (dice < 94) {
      return s3_error(503, "SlowDown", "", {{"retry-after", "0"}});
    }
    if (dice < 99) {
      return s3_error(409, "OperationAborted");
    }
    (void)forwarded(request, upstream_);
    return {.silent = true};
  }

  // KEEPSTEP_SPOILED_ROUNDS, 1 by default.
  static uint64_t rounds() {
    const char* rounds = std::getenv("KEEPSTEP_SPOILED_ROUNDS");
    return rounds == nullptr ? 1 : std::stoull(rounds);
  }

  // Runs `body` with a store behind the proxy.
  void spoil(uint64_t seed, const std::function<void(const std::string& url, const StoreOptions& options)>& body) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    random_.seed(seed);
    const size_t host = url_.find("127.0.0.1:") + 10;
    upstream_ = static_cast<uint16_t>(std::stoi(url_.substr(host)));
    FaultServer proxy([this](const SeenRequest& request) { return next(request); });
    const std::string url = absl::StrFormat("%s/spoiled-%d?endpoint=%s&region=us-east-1",
                                            url_.substr(0, url_.find('?')), seed, proxy.endpoint());
    StoreOptions options;
    options.first_pause = std::chrono::milliseconds(1);
    options.stall_timeout = std::chrono::milliseconds(2'000);  // a busy machine is not a fault
    options.part_bytes = kPart;
    options.seed = seed;
    body(url, options);
    EXPECT_GT(spoiled_, 0);
  }

  std::mutex mutex_;
  std::mt19937_64 random_;
  bool gone_ = false;
  uint16_t upstream_ = 0;
  std::atomic<int> spoiled_ = 0;
};

TEST_F(SpoiledS3ServerTest, all_arrives_and_is_read_as_it_was_written) {
  for (uint64_t seed = 1; seed <= rounds(); ++seed) {
    spoil(seed, [&](const std::string& url, const StoreOptions& options) {
      const auto store = std::move(open_store(url, options)).value();
      for (int i = 0; i < 10; ++i) {
        const auto put = store->put(absl::StrFormat("step-%d/x", i), as_span(content(seed, 1000 * i)), {});
        ASSERT_TRUE(put.ok()) << put.status();
      }
      const std::string large = content(seed, 3 * kPart + 77);
      auto writer = store->create("step-3/large", large.size());
      ASSERT_TRUE((*writer)->append(as_span(large)).ok());
      const auto etag = (*writer)->commit();
      ASSERT_TRUE(etag.ok()) << etag.status();
      const auto there = store->read_all("step-3/large", large.size());
      ASSERT_TRUE(there.ok()) << there.status();
      EXPECT_TRUE(there->bytes == large);
      for (int i = 0; i < 10; ++i) {
        const auto small = store->read_all(absl::StrFormat("step-%d/x", i), 10'000);
        ASSERT_TRUE(small.ok()) << small.status();
        EXPECT_TRUE(small->bytes == content(seed, 1000 * i));
      }
      const auto listed = store->list("");
      ASSERT_TRUE(listed.ok()) << listed.status();
      EXPECT_EQ(listed->size(), 11u);
      for (const ObjectInfo& each : *listed) {
        const Status removed = store->remove(each.key);
        EXPECT_TRUE(removed.ok()) << removed;
      }
      EXPECT_EQ(store->list("")->size(), 0u);
    });
  }
}

TEST_F(SpoiledS3ServerTest, a_lone_writer_never_loses_a_conditional_write_to_itself) {
  for (uint64_t seed = 1001; seed <= 1000 + rounds(); ++seed) {
    spoil(seed, [&](const std::string& url, const StoreOptions& options) {
      const auto store = std::move(open_store(url, options)).value();
      StatusOr<std::string> etag = store->put("owner.json", as_span("version 0"), PutCondition::absent());
      ASSERT_TRUE(etag.ok()) << etag.status();
      for (int i = 1; i <= 25; ++i) {
        etag = store->put("owner.json", as_span(absl::StrFormat("version %d", i)), PutCondition::matches(*etag));
        ASSERT_TRUE(etag.ok()) << i << ": " << etag.status();
      }
      EXPECT_EQ(store->read_all("owner.json", 100)->bytes, "version 25");
      const auto late = store->put("owner.json", as_span("x"), PutCondition::absent());
      EXPECT_EQ(late.status().code(), absl::StatusCode::kAborted) << late.status();
    });
  }
}

TEST_F(SpoiledS3ServerTest, a_server_that_is_gone_and_comes_back_gets_only_the_parts_it_has_not) {
  spoil(21, [&](const std::string& url, StoreOptions options) {
    const std::string bytes = content(5, 4 * kPart + 5);
    options.tries = 2;
    const auto store = std::move(open_store(url, options)).value();
    const auto set_gone = [&](bool gone) {
      const std::lock_guard lock(mutex_);
      gone_ = gone;
    };
    const S3Url whole = std::get<S3Url>(*parse_store_url(url));
    CredentialOptions credentials{.environment = [](const char* name) -> const char* { return std::getenv(name); }};
    S3Client direct(S3Location{.bucket = whole.bucket,
                               .prefix = whole.prefix,
                               .region = whole.region,
                               .endpoint = absl::StrFormat("http://127.0.0.1:%d", upstream_)},
                    credentials, StoreOptions{});
    {
      S3Client through(
          S3Location{
              .bucket = whole.bucket, .prefix = whole.prefix, .region = whole.region, .endpoint = whole.endpoint},
          credentials, options);
      S3Writer writer(through, "a", kPart, 1);
      {
        const std::lock_guard lock(mutex_);
        random_.seed(7);
      }
      Status appended;
      for (int part = 0; part < 3 && appended.ok(); ++part) {
        appended = writer.append(as_span(std::string_view(bytes).substr(part * kPart, kPart)));
      }
      set_gone(true);
      while (appended.ok()) {
        appended = writer.append(as_span(std::string_view(bytes).substr(3 * kPart, kPart)));
      }
      EXPECT_EQ(appended.code(), absl::StatusCode::kUnavailable) << appended;
    }
    set_gone(false);
    const auto uploads = list_uploads(direct, "a");
    ASSERT_TRUE(uploads.ok()) << uploads.status();
    size_t there = 0;
    if (!uploads->list.empty()) {  // unless it ended before the first part
      there = list_parts(direct, "a", uploads->list[0].id)->size();
    }
    S3Writer again(direct, "a", kPart, 2);
    ASSERT_TRUE(again.append(as_span(bytes)).ok());
    const auto etag = again.commit();
    ASSERT_TRUE(etag.ok()) << etag.status();
    EXPECT_EQ(static_cast<size_t>(again.parts_kept()), there);
    EXPECT_GT(there, 0u);
    EXPECT_TRUE(std::move(open_store(url, StoreOptions{})).value()->read_all("a", bytes.size())->bytes == bytes);
  });
}

// For servers whose conditional writes are atomic: MinIO's are, versitygw's are not.
class AtomicS3ServerTest : public S3ServerTest {
 protected:
  void SetUp() override {
    S3ServerTest::SetUp();
    if (!IsSkipped() && std::getenv("KEEPSTEP_TEST_S3_ATOMIC") == nullptr) {
      GTEST_SKIP() << "this server lets several through";
    }
  }
};

TEST_F(AtomicS3ServerTest, of_racing_puts_that_want_nothing_there_exactly_one_wins) {
  expect_one_winner_a_round([&] { return open("race"); }, 40, 16, false);
}

TEST_F(AtomicS3ServerTest, of_racing_puts_that_replace_one_version_exactly_one_wins) {
  expect_one_winner_a_round([&] { return open("race"); }, 40, 16, true);
}

}  // namespace
}  // namespace keepstep::checkpoint
