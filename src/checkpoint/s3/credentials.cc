#include "checkpoint/s3/credentials.h"

#include <ctime>
#include <utility>

#include "checkpoint/s3/credential_requests.h"
#include "checkpoint/s3/profile_file.h"

namespace keepstep::checkpoint {
namespace {

const std::string& value_in(const Profile& profile, const std::string& name) {
  static const std::string none;
  const auto found = profile.values.find(name);
  return found == profile.values.end() ? none : found->second;
}

std::string session_name(const CredentialOptions& options) {
  const std::string given = value_of(options.environment, "AWS_ROLE_SESSION_NAME");
  return given.empty() ? "keepstep" : given;
}

StatusOr<std::optional<Credentials>> from_environment(const CredentialOptions& options) {
  Credentials found{value_of(options.environment, "AWS_ACCESS_KEY_ID"),
                    value_of(options.environment, "AWS_SECRET_ACCESS_KEY"),
                    value_of(options.environment, "AWS_SESSION_TOKEN"), 0, "the environment"};
  if (found.access_key.empty() && found.secret_key.empty()) {
    return std::nullopt;
  }
  if (found.access_key.empty() || found.secret_key.empty()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no credentials: %s is set in the environment, but not %s",
                        found.access_key.empty() ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID",
                        found.access_key.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY"));
  }
  return found;
}

StatusOr<std::optional<Credentials>> from_profile(const CredentialOptions& options, HttpClient& http) {
  const std::string name = profile_name(options.environment, options.profile);
  const StatusOr<Profile> profile = read_profile(options.environment, name);
  if (absl::IsNotFound(profile.status())) {
    if (!options.profile.empty() || !value_of(options.environment, "AWS_PROFILE").empty()) {
      return absl::PermissionDeniedError(absl::StrFormat("no credentials: %s", profile.status().message()));
    }
    return std::nullopt;
  }
  if (!profile.ok()) {
    return absl::PermissionDeniedError(absl::StrFormat("no credentials: %s", profile.status().message()));
  }
  Credentials found{value_in(*profile, "aws_access_key_id"), value_in(*profile, "aws_secret_access_key"),
                    value_in(*profile, "aws_session_token"), 0, "profile " + profile->where};
  if (!found.access_key.empty() && !found.secret_key.empty()) {
    return found;
  }
  const std::string& role = value_in(*profile, "role_arn");
  const std::string& token_file = value_in(*profile, "web_identity_token_file");
  if (!role.empty() && !token_file.empty()) {
    const std::string& session = value_in(*profile, "role_session_name");
    KEEPSTEP_ASSIGN_OR_RETURN(Credentials lent,
                              assume_role_with_web_identity(options, http, role, token_file,
                                                            session.empty() ? session_name(options) : session));
    return lent;
  }
  for (const char* other :
       {"credential_process", "sso_session", "sso_start_url", "source_profile", "credential_source"}) {
    if (!value_in(*profile, other).empty()) {
      return absl::PermissionDeniedError(absl::StrFormat(
          "no credentials: profile %s has %s, which keepstep does not know. Export keys with `aws configure "
          "export-credentials --format env`, or use a role of the pod, container or instance",
          profile->where, other));
    }
  }
  if (!found.access_key.empty() || !found.secret_key.empty()) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "no credentials: profile %s has only one of aws_access_key_id and aws_secret_access_key", profile->where));
  }
  return std::nullopt;  // the profile may exist only for its region
}

}  // namespace

CredentialChain::CredentialChain(CredentialOptions options, HttpClient& http)
    : options_(std::move(options)), http_(http) {}

StatusOr<Credentials> CredentialChain::fetch(double now_s) const {
  std::optional<Credentials> found;
  if (options_.profile.empty()) {
    KEEPSTEP_ASSIGN_OR_RETURN(found, from_environment(options_));
    const std::string token_file = value_of(options_.environment, "AWS_WEB_IDENTITY_TOKEN_FILE");
    const std::string role = value_of(options_.environment, "AWS_ROLE_ARN");
    if (!found.has_value() && !token_file.empty() && !role.empty()) {
      KEEPSTEP_ASSIGN_OR_RETURN(
          found, assume_role_with_web_identity(options_, http_, role, token_file, session_name(options_)));
    }
  }
  if (!found.has_value()) {
    KEEPSTEP_ASSIGN_OR_RETURN(found, from_profile(options_, http_));
  }
  if (!found.has_value()) {
    KEEPSTEP_ASSIGN_OR_RETURN(found, container_credentials(options_, http_));
  }
  if (!found.has_value()) {
    KEEPSTEP_ASSIGN_OR_RETURN(found, instance_credentials(options_, http_));
  }
  if (!found.has_value()) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "no credentials for S3: none in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, no web identity, none in profile "
        "'%s', no role of a container or instance",
        profile_name(options_.environment, options_.profile)));
  }
  if (found->expires_s != 0 && found->expires_s <= now_s) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no credentials: those of %s expired %.0f s ago; is the clock right?", found->source,
                        now_s - found->expires_s));
  }
  return *std::move(found);
}

StatusOr<Credentials> CredentialChain::get(double now_s) {
  const auto holds = [&](const std::optional<Credentials>& credentials, double seconds) {
    return credentials.has_value() && (credentials->expires_s == 0 || credentials->expires_s > now_s + seconds);
  };
  // The current credentials, and whether they are good enough for now.
  const auto known = [&](bool* good) {
    const std::lock_guard lock(mutex_);
    *good = holds(current_, kRefreshBeforeS) || (holds(current_, 0) && now_s < tried_s_ + kRefreshPauseS);
    return current_;
  };
  bool good = false;
  std::optional<Credentials> current = known(&good);
  if (good) {
    return *current;
  }
  std::unique_lock fetching(fetching_, std::defer_lock);
  if (!holds(current, 0)) {
    fetching.lock();
  } else if (!fetching.try_lock()) {
    return *current;  // another thread is fetching
  }
  current = known(&good);
  if (good) {
    return *current;
  }
  StatusOr<Credentials> fetched = fetch(now_s);
  const std::lock_guard lock(mutex_);
  tried_s_ = now_s;
  if (fetched.ok()) {
    current_ = *fetched;
  } else if (holds(current, 0)) {
    return *current;
  }
  return fetched;
}

void CredentialChain::expired(const Credentials& used) {
  const std::lock_guard lock(mutex_);
  if (current_.has_value() && current_->access_key == used.access_key &&
      current_->session_token == used.session_token) {
    current_.reset();
  }
}

std::string region_of_profile(const Environment& environment, const std::string& profile) {
  const StatusOr<Profile> found = read_profile(environment, profile_name(environment, profile));
  return found.ok() ? value_in(*found, "region") : "";
}

double parse_iso_time(const std::string& text) {
  tm parts{};
  const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || (*rest != 'Z' && *rest != '.')) {
    return 0;
  }
  return static_cast<double>(timegm(&parts));
}

}  // namespace keepstep::checkpoint
