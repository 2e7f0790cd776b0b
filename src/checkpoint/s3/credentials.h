// The credentials that sign requests. Searched in the order of Amazon's own tools:
//
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (not if the store's URL names a profile)
//   2. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN: AssumeRoleWithWebIdentity of STS (pods with a service account)
//   3. the profile (AWS_PROFILE, else "default") in ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE,
//      AWS_CONFIG_FILE): keys, or role_arn with web_identity_token_file
//   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (ECS, EKS Pod Identity)
//   5. the instance's role, from IMDSv2 (AWS_EC2_METADATA_DISABLED=true turns it off)
//
// The first place that has anything is used, and an error there is final: no other identity is tried. Credentials that
// expire are fetched again five minutes earlier, by one thread, while the others go on with the current ones; if that
// fails, those are used until they expire. Files are read each time.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/s3/http.h"
#include "checkpoint/s3/retry.h"

namespace keepstep::checkpoint {

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: long-lived keys
  double expires_s = 0;       // seconds since the epoch; 0: never
  std::string source;         // for messages: "the environment", "profile 'x' in /home/me/.aws/credentials"
};

using Environment = std::function<const char*(const char* name)>;
inline std::string value_of(const Environment& environment, const char* name) {  // empty: not set
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

struct CredentialOptions {
  Environment environment;
  std::string profile;  // the one in the URL; empty if none
  std::string region;   // for STS
  std::string ca_file;  // for STS
  RetryLimits limits;
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{20'000};
};

class CredentialChain {
 public:
  static constexpr double kRefreshBeforeS = 300;
  static constexpr double kRefreshPauseS = 10;  // between two tries while the current ones are still valid

  CredentialChain(CredentialOptions options, HttpClient& http);

  // PERMISSION_DENIED says where it looked, or what a place answered. `now_s`: since the epoch.
  StatusOr<Credentials> get(double now_s);
  // The server reported that these have expired: the next get fetches new ones, unless another thread already has.
  void expired(const Credentials& used);

 private:
  StatusOr<Credentials> fetch(double now_s) const;

  CredentialOptions options_;
  HttpClient& http_;
  std::mutex fetching_;  // held by the thread that fetches
  std::mutex mutex_;     // guards what follows
  std::optional<Credentials> current_;
  double tried_s_ = 0;  // the last fetch, successful or not
};

// The profile's region, for when nothing else names one; empty if it names none.
std::string region_of_profile(const Environment& environment, const std::string& profile);

// "2026-11-22T06:10:00Z", with or without fractions; 0 if it is not a time.
double parse_iso_time(const std::string& text);

}  // namespace keepstep::checkpoint
