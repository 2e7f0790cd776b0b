// Where credentials are found, and when they are fetched again.
#include "checkpoint/s3/credentials.h"

#include <filesystem>
#include <fstream>
#include <future>

#include "checkpoint/s3/fault_server.h"
#include "checkpoint/s3/profile_file.h"
#include "checkpoint/s3/s3_store.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr double kNow = 1'800'000'000;  // 2027-01-15T08:00:00Z

class CredentialsTest : public testing::Test {
 protected:
  CredentialsTest() {
    variables_ = {{"HOME", folder_.path}, {"AWS_EC2_METADATA_DISABLED", "true"}};
    std::filesystem::create_directory(folder_.path + "/.aws");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path + "/" + name) << text;
  }
  std::string path(const std::string& name) const { return folder_.path + "/" + name; }

  CredentialOptions options(const std::string& profile = "") const {
    CredentialOptions result{.environment = [this](const char* name) -> const char* {
                               const auto found = variables_.find(name);
                               return found == variables_.end() ? nullptr : found->second.c_str();
                             },
                             .profile = profile,
                             .region = "here"};
    result.limits.first_pause = std::chrono::milliseconds(1);
    result.limits.tries = 3;
    return result;
  }
  StatusOr<Credentials> find(const std::string& profile = "") {
    CredentialChain chain(options(profile), http_);
    return chain.get(kNow);
  }

  TestFolder folder_;
  std::map<std::string, std::string> variables_;
  HttpClient http_;
};

TEST_F(CredentialsTest, the_environment_comes_first) {
  write(".aws/credentials", "[default]\naws_access_key_id = other\naws_secret_access_key = other\n");
  variables_["AWS_ACCESS_KEY_ID"] = "key";
  const auto half = find();
  EXPECT_EQ(half.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(text_of(half.status()), HasSubstr("but not AWS_SECRET_ACCESS_KEY"));
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  variables_["AWS_SESSION_TOKEN"] = "token";
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "key");
  EXPECT_EQ(found->secret_key, "secret");
  EXPECT_EQ(found->session_token, "token");
  EXPECT_EQ(found->source, "the environment");
}

TEST_F(CredentialsTest, a_profile_is_read_from_both_files) {
  write(".aws/credentials",
        "# mine\n[default]\naws_access_key_id=d\naws_secret_access_key=ds\n\n[ team ]\n"
        "AWS_ACCESS_KEY_ID = t\naws_secret_access_key = a=b/c+d \n");
  write(".aws/config",
        "[profile team]\nregion = eu-west-3\ns3 =\n  addressing_style = path\n[default]\nregion = us-west-2\n");
  EXPECT_EQ(find()->access_key, "d");
  EXPECT_EQ(find("team")->access_key, "t");
  EXPECT_EQ(find("team")->secret_key, "a=b/c+d");
  EXPECT_THAT(find("team")->source, HasSubstr("profile 'team' in " + path(".aws/credentials")));
  EXPECT_EQ(region_of_profile(options().environment, "team"), "eu-west-3");
  EXPECT_EQ(region_of_profile(options().environment, ""), "us-west-2");
  EXPECT_EQ(read_profile(options().environment, "team")->values.count("addressing_style"), 0u);
  variables_["AWS_ACCESS_KEY_ID"] = "key";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  EXPECT_EQ(find("team")->access_key, "t");  // the URL names it
  variables_.erase("AWS_ACCESS_KEY_ID");
  variables_.erase("AWS_SECRET_ACCESS_KEY");
  variables_["AWS_PROFILE"] = "nobody";
  EXPECT_THAT(text_of(find().status()), HasSubstr("there is no profile 'nobody' in"));
  write(".aws/config", "[profile nobody]\ncredential_process = /bin/x\n");
  EXPECT_THAT(text_of(find().status()), HasSubstr("has credential_process, which keepstep does not know"));
  write(".aws/config", "[profile nobody]\naws_access_key_id = x\n");
  EXPECT_THAT(text_of(find().status()), HasSubstr("only one of"));
}

TEST_F(CredentialsTest, none_anywhere_says_where_was_looked) {
  const auto found = find();
  EXPECT_EQ(found.status().code(), absl::StatusCode::kPermissionDenied);
  for (const char* place : {"AWS_ACCESS_KEY_ID", "web identity", "profile 'default'", "container or instance"}) {
    EXPECT_THAT(text_of(found.status()), HasSubstr(place));
  }
}

TEST_F(CredentialsTest, times_are_those_of_iso) {
  EXPECT_EQ(parse_iso_time("2027-01-15T08:00:00Z"), kNow);
  EXPECT_EQ(parse_iso_time("2027-01-15T08:00:00.123Z"), kNow);
  EXPECT_EQ(parse_iso_time("tomorrow"), 0);
  EXPECT_EQ(parse_iso_time(""), 0);
}

std::string sts_answer(const std::string& key, const std::string& expires) {
  return absl::StrFormat(
      "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
      "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
      "<SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
      "</AssumeRoleWithWebIdentityResponse>",
      key, expires);
}

TEST_F(CredentialsTest, a_web_identity_is_changed_for_a_role) {
  FaultServer sts([calls = std::make_shared<std::atomic<int>>(0)](const SeenRequest&) {
    return (*calls)++ == 0 ? PlannedAnswer{.status = 503}
                           : PlannedAnswer{.body = sts_answer("k1", "2027-01-15T09:00:00Z")};
  });
  write("token", "a.b+c\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = path("token");
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/train";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.endpoint();
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "k1");
  EXPECT_EQ(found->session_token, "t");
  EXPECT_EQ(found->expires_s, kNow + 3600);
  const SeenRequest seen = sts.requests().at(1);
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Ftrain&"
            "RoleSessionName=keepstep&WebIdentityToken=a.b%2Bc");
  EXPECT_EQ(seen.header("authorization"), "");
}

TEST_F(CredentialsTest, a_web_identity_that_is_refused_or_has_no_token_says_so) {
  FaultServer sts([](const SeenRequest&) {
    return PlannedAnswer{.status = 400,
                         .body =
                             "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>not trusted</Message>"
                             "</Error></ErrorResponse>"};
  });
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = path("token");
  variables_["AWS_ROLE_ARN"] = "arn";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.endpoint();
  EXPECT_THAT(text_of(find().status()), HasSubstr("token': No such file"));
  write("token", "x");
  const Status refused = find().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(text_of(refused), HasSubstr("400 InvalidIdentityToken: not trusted"));
  EXPECT_THAT(text_of(refused), HasSubstr("Does the role trust the token"));
}

std::string lent_json(const std::string& key, const std::string& expires) {
  return absl::StrFormat(R"({"Code":"Success","AccessKeyId":"%s","SecretAccessKey":"s","Token":"t","Expiration":"%s"})",
                         key, expires);
}

TEST_F(CredentialsTest, a_container_lends_them) {
  FaultServer agent([](const SeenRequest& request) {
    return request.header("authorization") == "Bearer x" && request.target == "/creds"
               ? PlannedAnswer{.body = lent_json("k2", "2027-01-15T09:00:00Z")}
               : PlannedAnswer{.status = 401, .body = "who?"};
  });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = agent.endpoint() + "/creds";
  EXPECT_THAT(text_of(find().status()), HasSubstr("answer 401: who?"));
  write("token", "Bearer x\n");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = path("token");
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "k2");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/creds";
  EXPECT_THAT(text_of(find().status()), HasSubstr("must be https, or this machine"));
}

TEST_F(CredentialsTest, an_instance_lends_those_of_its_role_after_a_token) {
  FaultServer metadata([](const SeenRequest& request) -> PlannedAnswer {
    if (request.method == "PUT" && request.target == "/latest/api/token" &&
        request.header("x-aws-ec2-metadata-token-ttl-seconds") == "21600") {
      return {.body = "T1"};
    }
    if (request.header("x-aws-ec2-metadata-token") != "T1") {
      return {.status = 401};
    }
    const std::string base = "/latest/meta-data/iam/security-credentials/";
    return request.target == base                  ? PlannedAnswer{.body = "train-role"}
           : request.target == base + "train-role" ? PlannedAnswer{.body = lent_json("k3", "2027-01-15T14:00:00Z")}
                                                   : PlannedAnswer{.status = 404};
  });
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = metadata.endpoint();
  EXPECT_THAT(text_of(find().status()), HasSubstr("no credentials for S3"));  // turned off
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "k3");
  EXPECT_EQ(found->source, "the instance's role 'train-role'");
}

// A container's agent whose answers the test controls.
struct Lender {
  std::mutex mutex;
  std::string key = "k1";
  std::string expires = "2027-01-15T09:00:00Z";
  int status = 200;
  FaultServer server{[this](const SeenRequest&) {
    const std::lock_guard lock(mutex);
    return PlannedAnswer{.status = status, .body = lent_json(key, expires)};
  }};
};

TEST_F(CredentialsTest, they_are_fetched_anew_before_they_expire_and_used_to_the_end_if_that_fails) {
  Lender lender;
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = lender.server.endpoint() + "/";
  CredentialChain chain(options(), http_);
  EXPECT_EQ(chain.get(kNow)->access_key, "k1");
  EXPECT_EQ(chain.get(kNow + 3200)->access_key, "k1");
  EXPECT_EQ(lender.server.requests().size(), 1u);
  {
    const std::lock_guard lock(lender.mutex);
    lender.status = 403;
  }
  EXPECT_EQ(chain.get(kNow + 3400)->access_key, "k1");  // refused, but the old ones are still valid
  EXPECT_EQ(lender.server.requests().size(), 2u);
  EXPECT_EQ(chain.get(kNow + 3405)->access_key, "k1");  // not fetched on each request
  EXPECT_EQ(lender.server.requests().size(), 2u);
  EXPECT_EQ(chain.get(kNow + 3601).status().code(), absl::StatusCode::kPermissionDenied);
  {
    const std::lock_guard lock(lender.mutex);
    lender.status = 200;
    lender.key = "k2";
    lender.expires = "2027-01-15T11:00:00Z";
  }
  EXPECT_EQ(chain.get(kNow + 3602)->access_key, "k2");
}

TEST_F(CredentialsTest, ones_that_have_expired_already_are_not_used) {
  Lender lender;
  lender.expires = "2027-01-15T07:00:00Z";
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = lender.server.endpoint() + "/";
  const Status found = find().status();
  EXPECT_EQ(found.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(text_of(found), HasSubstr("expired 3600 s ago; is the clock right?"));
}

TEST_F(CredentialsTest, ones_that_a_server_calls_expired_are_fetched_anew_once) {
  Lender lender;
  lender.expires = "2100-01-01T00:00:00Z";
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = lender.server.endpoint() + "/";
  FaultServer s3([&](const SeenRequest& request) {
    if (request.header("authorization").find("Credential=k2/") != std::string::npos) {
      return PlannedAnswer{.body = "x"};
    }
    const std::lock_guard lock(lender.mutex);
    lender.key = "k2";
    return s3_error(400, "ExpiredToken");
  });
  StoreOptions options;
  options.environment = this->options().environment;
  const std::string url = "s3://bucket?endpoint=" + s3.endpoint();
  const auto read = (*open_store(url, options))->read_all("a", 10);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(s3.requests().size(), 2u);
  EXPECT_EQ(s3.requests()[0].header("x-amz-security-token"), "t");
  EXPECT_THAT(s3.requests()[0].header("authorization"), HasSubstr("x-amz-security-token"));
  FaultServer never([](const SeenRequest&) { return s3_error(400, "ExpiredToken"); });
  const Status refused = (*open_store("s3://bucket?endpoint=" + never.endpoint(), options))->read_all("a", 10).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(text_of(refused), HasSubstr("have expired"));
  EXPECT_EQ(never.requests().size(), 2u);
}

TEST_F(CredentialsTest, while_one_thread_fetches_the_others_go_on_with_what_they_have) {
  std::promise<void> asked;
  std::promise<void> answer;
  std::shared_future<void> may_answer = answer.get_future().share();
  FaultServer slow([&, calls = std::make_shared<std::atomic<int>>(0)](const SeenRequest&) {
    if ((*calls)++ == 0) {
      return PlannedAnswer{.body = lent_json("k1", "2027-01-15T09:00:00Z")};
    }
    asked.set_value();
    may_answer.wait();
    return PlannedAnswer{.body = lent_json("k2", "2027-01-15T11:00:00Z")};
  });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = slow.endpoint() + "/";
  CredentialChain chain(options(), http_);
  EXPECT_EQ(chain.get(kNow)->access_key, "k1");
  auto fetching = std::async(std::launch::async, [&] { return chain.get(kNow + 3400)->access_key; });
  asked.get_future().wait();
  EXPECT_EQ(chain.get(kNow + 3400)->access_key, "k1");
  answer.set_value();
  EXPECT_EQ(fetching.get(), "k2");
  EXPECT_EQ(chain.get(kNow + 3401)->access_key, "k2");
}

}  // namespace
}  // namespace keepstep::checkpoint
