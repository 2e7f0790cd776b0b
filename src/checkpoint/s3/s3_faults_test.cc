// The S3 store against servers that drop, cut, stall, lie and refuse.
#include <cstdlib>
#include <future>

#include "checkpoint/s3/digests.h"
#include "checkpoint/s3/fault_server.h"
#include "checkpoint/s3/s3_store.h"
#include "checkpoint/s3/s3_writer.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Keys, and nothing else from the environment of the test.
const char* test_environment(const char* name) {
  const std::string_view asked = name;
  return asked == "AWS_ACCESS_KEY_ID" ? "key" : asked == "AWS_SECRET_ACCESS_KEY" ? "secret" : nullptr;
}

StoreOptions quick() {
  StoreOptions options;
  options.environment = test_environment;
  options.first_pause = std::chrono::milliseconds(1);
  options.tries = 4;
  options.seed = 1;
  return options;
}

std::unique_ptr<ObjectStore> open_at(const FaultServer& server, const StoreOptions& options = quick(),
                                     const std::string& more = "") {
  return std::move(
             open_store(absl::StrFormat("s3://bucket/run?endpoint=%s&region=here%s", server.endpoint(), more), options))
      .value();
}

PlannedAnswer object(const std::string& bytes, const std::string& etag = "e1") {
  return {.headers = {{"etag", "\"" + etag + "\""}}, .body = bytes};
}

// Answers with `plan` in order, and repeats the last answer forever.
FaultServer::Handler in_order(std::vector<PlannedAnswer> plan) {
  auto next = std::make_shared<std::atomic<size_t>>(0);
  return [plan = std::move(plan), next](const SeenRequest&) { return plan[std::min((*next)++, plan.size() - 1)]; };
}

// Reads a key; faults before the last answer of the plan must not matter.
struct Hiccup {
  const char* name;
  PlannedAnswer answer;
};
class PassingTroubleTest : public testing::TestWithParam<Hiccup> {};

TEST_P(PassingTroubleTest, is_got_over_by_asking_again) {
  FaultServer server(in_order({GetParam().answer, GetParam().answer, object("the bytes")}));
  const auto store = open_at(server);
  const auto read = store->read_all("a", 100);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->bytes, "the bytes");
  EXPECT_EQ(read->etag, "e1");
  EXPECT_EQ(server.requests().size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(
    All, PassingTroubleTest,
    testing::Values(Hiccup{"dropped", {.drop = true}}, Hiccup{"cut", {.body = "half of it", .cut_after = 4}},
                    Hiccup{"empty500", {.status = 500}}, Hiccup{"InternalError", s3_error(500, "InternalError")},
                    Hiccup{"SlowDown", s3_error(503, "SlowDown", "", {{"retry-after", "0"}})},
                    Hiccup{"TooMany", {.status = 429, .headers = {{"Retry-After", "0"}}}},
                    Hiccup{"Past", {.status = 503, .headers = {{"Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"}}}},
                    Hiccup{"BadGateway", {.status = 502, .body = "<html>oops</html>"}},
                    Hiccup{"RequestTimeout", s3_error(400, "RequestTimeout")},
                    Hiccup{"conflict", s3_error(409, "OperationAborted")}),
    [](const auto& info) { return std::string(info.param.name); });

// What retrying cannot fix: one request, and an error that says what to do.
struct Refusal {
  const char* name;
  PlannedAnswer answer;
  absl::StatusCode code;
  const char* says;
};
class LastingTroubleTest : public testing::TestWithParam<Refusal> {};

TEST_P(LastingTroubleTest, is_told_at_once_with_the_way_out) {
  FaultServer server(in_order({GetParam().answer}));
  const Status read = open_at(server)->read_all("a", 100).status();
  EXPECT_EQ(read.code(), GetParam().code) << read;
  EXPECT_THAT(text_of(read), HasSubstr(GetParam().says));
  EXPECT_EQ(server.requests().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    All, LastingTroubleTest,
    testing::Values(
        Refusal{"rights", s3_error(403, "AccessDenied"), absl::StatusCode::kPermissionDenied,
                "the credentials from the environment have no right to (it answered 403 AccessDenied: said so"},
        Refusal{"key", s3_error(403, "InvalidAccessKeyId"), absl::StatusCode::kPermissionDenied, "does not know"},
        Refusal{"secret", s3_error(403, "SignatureDoesNotMatch"), absl::StatusCode::kPermissionDenied,
                "does not match its access key"},
        Refusal{"bucket", s3_error(404, "NoSuchBucket"), absl::StatusCode::kFailedPrecondition, "no such bucket; make"},
        Refusal{"object", s3_error(404, "NoSuchKey"), absl::StatusCode::kNotFound,
                "there is no 'a' in s3://bucket/run"},
        Refusal{"moved",
                s3_error(301, "PermanentRedirect", "", {{"x-amz-bucket-region", "eu-west-1"}, {"location", "/x"}}),
                absl::StatusCode::kFailedPrecondition, "it is in 'eu-west-1': add region=eu-west-1 to the URL"},
        Refusal{"moved_for_now", s3_error(307, "TemporaryRedirect", "", {{"location", "http://127.0.0.1:1/"}}),
                absl::StatusCode::kFailedPrecondition, "the bucket is not in the region 'here'"},
        Refusal{"region", s3_error(400, "AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>"),
                absl::StatusCode::kFailedPrecondition, "add region=ap-south-1"},
        Refusal{"unsaid_region",
                {.status = 400, .headers = {{"x-amz-bucket-region", "sa-east-1"}}},
                absl::StatusCode::kFailedPrecondition,
                "add region=sa-east-1"},
        Refusal{"skewed", s3_error(403, "RequestTimeTooSkewed", "<ServerTime>2020-01-01T00:00:00Z</ServerTime>"),
                absl::StatusCode::kFailedPrecondition, "min ahead of the server's; set it right"},
        Refusal{"behind", s3_error(403, "AccessDenied", "", {{"date", "Fri, 01 Jan 2100 00:00:00 GMT"}}),
                absl::StatusCode::kFailedPrecondition, "min behind of the server's; set it right"},
        Refusal{"full", s3_error(507, "XMinioStorageFull"), absl::StatusCode::kResourceExhausted, "full"},
        Refusal{"unknown", s3_error(501, "NotImplemented"), absl::StatusCode::kFailedPrecondition,
                "does not know such"},
        Refusal{"crc",
                {.headers = {{"x-amz-checksum-crc32c", "AAAAAA=="}}, .body = "x"},
                absl::StatusCode::kDataLoss,
                "is damaged"},
        Refusal{"no_http", {.raw = "SSH-2.0-OpenSSH_9.2\r\n"}, absl::StatusCode::kDataLoss, "does not speak HTTP"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(S3FaultsTest, a_server_that_stays_sick_is_given_up_after_all_tries_and_its_words_are_told) {
  FaultServer server(in_order({s3_error(503, "SlowDown")}));
  const Status read = open_at(server)->read_all("a", 100).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text_of(read), HasSubstr("503 SlowDown: said so"));
  EXPECT_THAT(text_of(read), HasSubstr("tried 4 times"));
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(S3FaultsTest, a_server_that_wants_peace_for_longer_than_there_is_time_is_left_alone) {
  FaultServer server(in_order({s3_error(503, "SlowDown", "", {{"retry-after", "3600"}})}));
  const Status read = open_at(server)->read_all("a", 100).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text_of(read), HasSubstr("asks for a pause of 3600000 ms"));
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(S3FaultsTest, once_too_many_requests_fail_nothing_is_asked_twice) {
  FaultServer server(in_order({s3_error(500, "InternalError")}));
  const auto store = open_at(server);
  for (int i = 0; i < 34; ++i) {
    EXPECT_FALSE(store->read_all("a", 100).ok());
  }
  const size_t before = server.requests().size();
  EXPECT_EQ(before, 34u + 100u);  // 500 tokens, 5 per retry
  const Status read = store->read_all("a", 100).status();
  EXPECT_THAT(text_of(read), HasSubstr("the budget of retries is spent"));
  EXPECT_EQ(server.requests().size(), before + 1);
}

TEST(S3FaultsTest, nobody_at_the_other_end_is_unavailable) {
  std::string endpoint;
  {
    FaultServer gone(in_order({{}}));
    endpoint = gone.endpoint();
  }
  const Status read = (*open_store("s3://bucket?endpoint=" + endpoint, quick()))->read_all("a", 100).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable) << read;
}

TEST(S3FaultsTest, a_silent_server_is_given_up) {
  FaultServer server(in_order({{.silent = true}}));
  StoreOptions options = quick();
  options.stall_timeout = std::chrono::milliseconds(50);
  options.tries = 1;
  const Status read = open_at(server, options)->read_all("a", 100).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(text_of(read), HasSubstr("silent for 50 ms"));
}

TEST(S3FaultsTest, a_call_under_way_is_called_off) {
  std::promise<void> asked;
  FaultServer server([&](const SeenRequest&) {
    asked.set_value();
    return PlannedAnswer{.silent = true};
  });
  const auto store = open_at(server);
  auto reading = std::async(std::launch::async, [&] { return store->read_all("a", 100).status(); });
  asked.get_future().wait();
  store->interrupt();
  EXPECT_EQ(reading.get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store->list("").status().code(), absl::StatusCode::kCancelled);
}

TEST(S3FaultsTest, a_pause_between_two_tries_is_called_off) {
  std::promise<void> asked;
  FaultServer server([&](const SeenRequest&) {
    asked.set_value();
    return s3_error(503, "SlowDown", "", {{"retry-after", "60"}});
  });
  const auto store = open_at(server);
  auto reading = std::async(std::launch::async, [&] { return store->read_all("a", 100).status(); });
  asked.get_future().wait();
  store->interrupt();
  EXPECT_EQ(reading.get().code(), absl::StatusCode::kCancelled);
}

TEST(S3FaultsTest, requests_are_signed_and_queries_sorted) {
  FaultServer server(in_order({s3_error(404, "NoSuchKey")}));
  const auto store = open_at(server);
  (void)store->head("a b/c+d");
  (void)store->list("x/y");
  (void)store->put("a", as_span("bytes"), PutCondition::matches("e7"));
  const auto requests = server.requests();
  EXPECT_EQ(requests[0].target, "/bucket/run/a%20b/c%2Bd");
  EXPECT_THAT(requests[0].header("authorization"), StartsWith("AWS4-HMAC-SHA256 Credential=key/"));
  EXPECT_THAT(requests[0].header("authorization"), HasSubstr("/here/s3/aws4_request"));
  EXPECT_EQ(requests[1].target, "/bucket?encoding-type=url&list-type=2&max-keys=1000&prefix=run%2Fx%2Fy");
  EXPECT_EQ(requests[2].header("if-match"), "\"e7\"");
  EXPECT_EQ(requests[2].header("x-amz-content-sha256"),
            "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9");
  EXPECT_THAT(requests[2].header("authorization"), HasSubstr("if-match"));
}

TEST(S3FaultsTest, a_bucket_may_be_part_of_the_hosts_name) {
  FaultServer server(in_order({object("x")}));
  const std::string url =
      absl::StrFormat("s3://my-bucket/run?endpoint=http://localhost:%d&addressing=virtual", server.port());
  EXPECT_TRUE((*open_store(url, quick()))->read_all("a", 10).ok());
  EXPECT_EQ(server.requests().at(0).header("host"), absl::StrFormat("my-bucket.localhost:%d", server.port()));
  EXPECT_EQ(server.requests().at(0).target, "/run/a");
  const auto address = open_store("s3://my-bucket?endpoint=http://127.0.0.1:1&addressing=virtual", quick());
  EXPECT_THAT(text_of(address.status()), HasSubstr("use addressing=path"));
}

TEST(S3FaultsTest, plain_http_to_another_machine_is_refused_unless_it_is_allowed) {
  const StoreOptions options = quick();
  const Status refused = open_store("s3://my-bucket?endpoint=http://minio.lan:9000", options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(text_of(refused), AllOf(HasSubstr("http://minio.lan:9000"), HasSubstr("http=allow")));
  EXPECT_TRUE(open_store("s3://my-bucket?endpoint=http://minio.lan:9000&http=allow", options).ok());
  EXPECT_TRUE(open_store("s3://my-bucket?endpoint=https://minio.lan:9000", options).ok());
  EXPECT_TRUE(open_store("s3://my-bucket?endpoint=http://[::1]:9000", options).ok());
  StoreOptions by_environment = options;
  by_environment.environment = [](const char* name) -> const char* {
    return name == std::string_view("AWS_ENDPOINT_URL")   ? "http://minio.lan:9000"
           : name == std::string_view("KEEPSTEP_S3_HTTP") ? "allow"
                                                          : nullptr;
  };
  EXPECT_TRUE(open_store("s3://my-bucket", by_environment).ok());
  by_environment.environment = [](const char* name) -> const char* {
    return name == std::string_view("AWS_ENDPOINT_URL") ? "http://minio.lan:9000" : nullptr;
  };
  EXPECT_FALSE(open_store("s3://my-bucket", by_environment).ok());
}

// Conditional puts.

TEST(S3FaultsTest, a_conflict_of_conditional_writes_is_asked_again_and_then_decided) {
  FaultServer lost(in_order(
      {s3_error(409, "ConditionalRequestConflict"), s3_error(412, "PreconditionFailed"), object("theirs", "e9")}));
  const Status put = open_at(lost)->put("a", as_span("mine"), PutCondition::absent()).status();
  EXPECT_EQ(put.code(), absl::StatusCode::kAborted) << put;
  EXPECT_THAT(text_of(put), HasSubstr("there is version e9, 6 bytes"));
  EXPECT_EQ(lost.requests().at(0).header("if-none-match"), "*");
  FaultServer won(in_order({s3_error(409, "ConditionalRequestConflict"), object("", "e1")}));
  EXPECT_EQ(*open_at(won)->put("a", as_span("mine"), PutCondition::absent()), "e1");
}

TEST(S3FaultsTest, a_conditional_put_whose_answer_was_lost_knows_its_own_bytes) {
  for (const bool ours : {true, false}) {
    FaultServer server([&, puts = std::make_shared<std::atomic<int>>(0)](const SeenRequest& request) {
      if (request.method != "PUT") {
        return object(ours ? "mine" : "your", "e5");
      }
      return (*puts)++ == 0 ? PlannedAnswer{.drop = true} : s3_error(412, "PreconditionFailed");
    });
    const auto put = open_at(server)->put("a", as_span("mine"), PutCondition::absent());
    if (ours) {
      ASSERT_TRUE(put.ok()) << put.status();
      EXPECT_EQ(*put, "e5");
    } else {
      EXPECT_EQ(put.status().code(), absl::StatusCode::kAborted) << put.status();
    }
  }
  // Refused at once, so it need not ask whose bytes these are: not ours.
  FaultServer server([&](const SeenRequest& request) {
    return request.method == "PUT" ? s3_error(412, "PreconditionFailed") : object("mine", "e5");
  });
  EXPECT_EQ(open_at(server)->put("a", as_span("mine"), PutCondition::absent()).status().code(),
            absl::StatusCode::kAborted);
}

// Reading.

TEST(S3FaultsTest, more_bytes_than_were_asked_for_or_others_are_not_taken) {
  std::string into(4, '\0');
  const auto read = [&](const PlannedAnswer& answer, uint64_t offset) {
    FaultServer server(in_order({answer}));
    return open_at(server)->read("a", offset, std::as_writable_bytes(std::span(into.data(), into.size())));
  };
  EXPECT_TRUE(read({.status = 206, .headers = {{"content-range", "bytes 8-11/20"}}, .body = "abcd"}, 8).ok());
  EXPECT_EQ(into, "abcd");
  EXPECT_EQ(read({.status = 206, .headers = {{"content-range", "bytes 8-12/20"}}, .body = "abcde"}, 8).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(read({.status = 206, .headers = {{"content-range", "bytes 9-12/20"}}, .body = "abcd"}, 8).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(read({.status = 200, .body = "abcd"}, 8).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(read({.status = 200, .body = "abcd"}, 0).ok());
  const Status beyond = read({.status = 416, .headers = {{"content-range", "bytes */6"}}}, 8);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kOutOfRange);
}

TEST(S3FaultsTest, an_object_replaced_while_its_pieces_are_read_is_noticed) {
  FaultServer server([](const SeenRequest& request) {
    const std::string range = request.header("range").substr(6);  // after "bytes="
    const uint64_t begin = std::stoull(range);
    const uint64_t end = std::stoull(range.substr(range.find('-') + 1)) + 1;
    return PlannedAnswer{.status = 206,
                         .headers = {{"content-range", absl::StrFormat("bytes %d-%d/100000000", begin, end - 1)},
                                     {"etag", begin == 0 ? "\"old\"" : "\"new\""}},
                         .body = std::string(end - begin, 'x')};
  });
  std::vector<std::byte> into(20 << 20);
  const Status read = open_at(server)->read("a", 0, into);
  EXPECT_EQ(read.code(), absl::StatusCode::kAborted) << read;
  EXPECT_EQ(server.requests().size(), 3u);
}

TEST(S3FaultsTest, an_object_larger_than_was_asked_for_is_refused_before_memory_is_taken) {
  FaultServer server([](const SeenRequest& request) {
    PlannedAnswer answer = object(std::string(3 << 20, 'x'));
    if (request.method == "HEAD") {
      answer.headers.emplace_back("content-length", "3145728");
    }
    return answer;
  });
  const Status read = open_at(server)->read_all("a", 1000).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kOutOfRange) << read;
  EXPECT_THAT(text_of(read), HasSubstr("has 3145728 bytes; at most 1000"));
}

TEST(S3FaultsTest, headers_without_bounds_are_not_taken) {
  FaultServer server(in_order({{.headers = {{"x-much", std::string(80'000, 'x')}}}}));
  EXPECT_EQ(open_at(server)->head("a").status().code(), absl::StatusCode::kDataLoss);
}

// Listings.

PlannedAnswer page_of(const std::string& inner) {
  return {.body = "<?xml version=\"1.0\"?><ListBucketResult>" + inner + "</ListBucketResult>"};
}

TEST(S3FaultsTest, a_listing_that_was_cut_is_asked_for_again) {
  const PlannedAnswer whole = page_of("<Contents><Key>run/a</Key><Size>5</Size></Contents>");
  FaultServer server(in_order({{.body = whole.body.substr(0, 60)}, whole}));
  EXPECT_THAT(keys_of(*open_at(server)->list("")), ElementsAre("a"));
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST(S3FaultsTest, a_listing_in_circles_or_of_other_keys_or_without_bounds_is_an_error) {
  const auto list = [](const PlannedAnswer& answer) {
    FaultServer server(in_order({answer}));
    return open_at(server)->list("x").status();
  };
  EXPECT_THAT(text_of(list(page_of("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"))),
              HasSubstr("circles"));
  EXPECT_THAT(text_of(list(page_of("<IsTruncated>true</IsTruncated>"))), HasSubstr("circles"));
  EXPECT_THAT(text_of(list(page_of("<Contents><Key>run/y</Key></Contents>"))), HasSubstr("not asked for"));
  EXPECT_EQ(list(page_of(std::string(9 << 20, ' '))).code(), absl::StatusCode::kDataLoss);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "<a>";
  }
  EXPECT_EQ(list(page_of(deep)).code(), absl::StatusCode::kUnavailable);  // treated like a truncated answer
}

// Writing in parts.

struct PartsServer {
  // How a minimal server handles uploads; `complete` answers the joining calls, in order.
  explicit PartsServer(std::vector<PlannedAnswer> complete) : joins(std::move(complete)) {}

  PlannedAnswer operator()(const SeenRequest& request) {
    const std::lock_guard lock(mutex);
    if (request.method == "GET" && request.target.find("uploads=") != std::string::npos) {
      return {.body = "<ListMultipartUploadsResult></ListMultipartUploadsResult>"};
    }
    if (request.method == "POST" && request.target.find("uploads=") != std::string::npos) {
      return {.body = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"};
    }
    if (request.method == "PUT") {
      return {.headers = {{"etag", "\"0123456789abcdef0123456789abcdef\""}}};
    }
    if (request.method == "POST") {
      return joins[std::min(joined++, joins.size() - 1)];
    }
    if (request.method == "HEAD") {
      return {.headers = {{"etag", "\"" + there + "\""}, {"content-length", absl::StrFormat("%d", bytes)}}};
    }
    deleted = true;
    return {.status = 204};
  }

  std::mutex mutex;
  std::vector<PlannedAnswer> joins;
  size_t joined = 0;
  std::string there;
  size_t bytes = 0;
  bool deleted = false;
};

const PlannedAnswer kJoined = {
    .body = "<CompleteMultipartUploadResult><ETag>&quot;e-2&quot;</ETag></CompleteMultipartUploadResult>"};

StatusOr<std::string> write_two_parts(PartsServer& parts) {
  FaultServer server([&](const SeenRequest& request) { return parts(request); });
  StoreOptions options = quick();
  options.part_bytes = 5 << 20;
  const auto store = open_at(server, options);
  const auto writer = store->create("a", 0);
  const std::string bytes = content(1, (5 << 20) + 100);
  parts.bytes = bytes.size();
  KEEPSTEP_RETURN_IF_ERROR((*writer)->append(as_span(bytes)));
  return (*writer)->commit();
}

TEST(S3FaultsTest, an_error_inside_a_good_answer_to_joining_the_parts_is_one) {
  PartsServer parts({{.body = "<Error><Code>InternalError</Code></Error>"}, kJoined});
  EXPECT_EQ(*write_two_parts(parts), "e-2");
  EXPECT_EQ(parts.joined, 2u);
  EXPECT_FALSE(parts.deleted);
}

TEST(S3FaultsTest, parts_joined_by_a_request_whose_answer_was_lost_are_found_joined) {
  PartsServer parts({{.drop = true}, s3_error(404, "NoSuchUpload")});
  const std::vector<std::string> etags(2, "0123456789abcdef0123456789abcdef");
  parts.there = "fdd7a1abfcb94aa4e7b1ed87dbd2f3a2-2";
  const auto other = write_two_parts(parts);  // the same size, other bytes
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAborted) << other.status();
  EXPECT_THAT(text_of(other.status()), HasSubstr("ended by somebody else"));
  parts.joined = 0;
  parts.there = etag_of_parts(etags);
  const auto found = write_two_parts(parts);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, parts.there);
}

TEST(S3FaultsTest, an_upload_stays_for_the_next_writer_when_the_server_is_gone_and_goes_when_it_is_of_no_use) {
  PartsServer gone({s3_error(503, "ServiceUnavailable")});
  EXPECT_EQ(write_two_parts(gone).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(gone.deleted);
  PartsServer refused({s3_error(403, "AccessDenied")});
  EXPECT_EQ(write_two_parts(refused).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(refused.deleted);
}

TEST(S3FaultsTest, a_part_that_fails_for_good_ends_the_writer) {
  FaultServer server([parts = std::make_shared<PartsServer>(std::vector{kJoined})](const SeenRequest& request) {
    return request.method == "PUT" ? s3_error(403, "AccessDenied") : (*parts)(request);
  });
  StoreOptions options = quick();
  options.part_bytes = 5 << 20;
  const auto store = open_at(server, options);
  const auto writer = store->create("a", 0);
  const std::string bytes = content(1, 6 << 20);
  Status appended;
  for (int i = 0; i < 20 && appended.ok(); ++i) {
    appended = (*writer)->append(as_span(bytes));
  }
  EXPECT_EQ(appended.code(), absl::StatusCode::kPermissionDenied) << appended;
  EXPECT_FALSE((*writer)->append(as_span("x")).ok());
  EXPECT_FALSE((*writer)->commit().ok());
}

TEST(S3FaultsTest, options_and_endpoints_that_cannot_be_are_refused) {
  for (const auto& change : std::vector<std::function<void(StoreOptions&)>>{
           [](StoreOptions& o) { o.part_bytes = 1 << 20; }, [](StoreOptions& o) { o.part_bytes = uint64_t{2} << 30; },
           [](StoreOptions& o) { o.parallel = 0; }, [](StoreOptions& o) { o.tries = 0; }}) {
    StoreOptions options = quick();
    change(options);
    EXPECT_EQ(open_store("s3://bucket", options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  StoreOptions options = quick();
  options.environment = [](const char* name) {
    return std::string_view(name) == "AWS_ENDPOINT_URL" ? "host:9000" : test_environment(name);
  };
  EXPECT_THAT(text_of(open_store("s3://bucket", options).status()), HasSubstr("'host:9000'"));
  FaultServer server(in_order({object("x")}));
  EXPECT_EQ(open_at(server)->create("a", uint64_t{1} << 60).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace keepstep::checkpoint
