#include "checkpoint/s3/credential_requests.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/token.h"
#include "checkpoint/s3/profile_file.h"
#include "checkpoint/s3/xml.h"
#include "checkpoint/store_url.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxWords = 200;  // of an answer, in a message

// Sends a request, with a few tries if the service is unreachable or temporarily failing. Any other answer is final.
StatusOr<HttpAnswer> ask(const CredentialOptions& options, HttpClient& http, HttpRequest request, int tries) {
  request.stall_timeout = options.stall_timeout;
  RetryLimits limits = options.limits;
  limits.tries = std::min(limits.tries, tries);
  RetryBudget budget;
  Retries retries(limits, budget, random_number());
  const int64_t begin = monotonic_ns();
  while (true) {
    StatusOr<HttpAnswer> answer = http.send(request);
    if (answer.ok() ? answer->status < 500 && answer->status != 429 : !absl::IsUnavailable(answer.status())) {
      return answer;
    }
    const auto decision = retries.failed(milliseconds((monotonic_ns() - begin) / 1'000'000), std::nullopt);
    if (!decision.again) {
      return answer.ok() ? StatusOr<HttpAnswer>(absl::UnavailableError(
                               absl::StrFormat("%s answers %d", host_of(request.url), answer->status)))
                         : answer;
    }
    std::this_thread::sleep_for(std::min(decision.pause, milliseconds(1'000)));
  }
}

// {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": ...}
StatusOr<Credentials> parse_lent(const std::string& body, const std::string& source) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  const auto text = [&](const char* name) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Credentials lent{text("AccessKeyId"), text("SecretAccessKey"), text("Token"), parse_iso_time(text("Expiration")),
                   source};
  if (lent.access_key.empty() || lent.secret_key.empty()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s gave no credentials: %s", source, shortened(body, kMaxWords)));
  }
  return lent;
}

}  // namespace

StatusOr<Credentials> assume_role_with_web_identity(const CredentialOptions& options, HttpClient& http,
                                                    const std::string& role, const std::string& token_file,
                                                    const std::string& session) {
  const StatusOr<std::string> token = read_small_file(token_file);
  if (!token.ok()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no credentials: the web identity's token: %s", token.status().message()));
  }
  std::string endpoint = value_of(options.environment, "AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) {
    endpoint = absl::StrFormat("https://sts.%s.amazonaws.com", options.region);
  }
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  const std::string form = absl::StrFormat(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s&RoleSessionName=%s&WebIdentityToken=%s",
      percent_encoded(role, false), percent_encoded(session, false), percent_encoded(*token, false));
  HttpRequest request{.method = "POST",
                      .url = endpoint + "/",
                      .headers = {"content-type: application/x-www-form-urlencoded"},
                      .body = std::as_bytes(std::span(form.data(), form.size()))};
  request.connect_timeout = options.connect_timeout;
  request.ca_file = options.ca_file;
  const std::string source = absl::StrFormat("STS at %s for the role %s", host_of(endpoint), role);
  KEEPSTEP_ASSIGN_OR_RETURN(const HttpAnswer answer, ask(options, http, request, 4));
  const StatusOr<Xml> xml = Xml::parse(answer.body);
  if (answer.status != 200 || !xml.ok()) {
    const Xml::Element error = xml.ok() ? xml->root().child("Error") : Xml::Element(nullptr);
    return absl::PermissionDeniedError(absl::StrFormat(
        "no credentials: %s answers %d %s: %s. Does the role trust the token in %s?", source, answer.status,
        error.text("Code"),
        error.valid() ? shortened(error.text("Message"), kMaxWords) : shortened(answer.body, kMaxWords), token_file));
  }
  const Xml::Element lent = xml->root().child("AssumeRoleWithWebIdentityResult").child("Credentials");
  Credentials result{lent.text("AccessKeyId"), lent.text("SecretAccessKey"), lent.text("SessionToken"),
                     parse_iso_time(lent.text("Expiration")), source};
  if (result.access_key.empty() || result.secret_key.empty()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s gave no credentials: %s", source, shortened(answer.body, kMaxWords)));
  }
  return result;
}

StatusOr<std::optional<Credentials>> container_credentials(const CredentialOptions& options, HttpClient& http) {
  const std::string relative = value_of(options.environment, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = value_of(options.environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) {
    return std::nullopt;
  }
  HttpRequest request{.method = "GET", .url = relative.empty() ? full : "http://169.254.170.2" + relative};
  const std::string_view host = host_of(request.url);
  // Like Amazon's tools: a token must not be sent unencrypted to arbitrary hosts.
  if (relative.empty() && !request.url.starts_with("https://") && !is_loopback(host) && host != "169.254.170.2" &&
      host != "169.254.170.23" && host != "[fd00:ec2::23]") {
    return absl::PermissionDeniedError(absl::StrFormat(
        "no credentials: AWS_CONTAINER_CREDENTIALS_FULL_URI is '%s'; it must be https, or this machine", request.url));
  }
  std::string token = value_of(options.environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = value_of(options.environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    const StatusOr<std::string> read = read_small_file(file);
    if (!read.ok()) {
      return absl::PermissionDeniedError(
          absl::StrFormat("no credentials: the container's token: %s", read.status().message()));
    }
    token = *read;
  }
  if (!token.empty()) {
    if (token.find_first_of("\r\n") != std::string::npos) {
      return absl::PermissionDeniedError("no credentials: the container's token has several lines");
    }
    request.headers.push_back("authorization: " + token);
  }
  request.connect_timeout = std::min(options.connect_timeout, milliseconds(2'000));
  request.direct = true;
  const std::string source = absl::StrFormat("the container's credentials at %s", host);
  KEEPSTEP_ASSIGN_OR_RETURN(const HttpAnswer answer, ask(options, http, request, 4));
  if (answer.status != 200) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no credentials: %s answer %d: %s", source, answer.status, shortened(answer.body, kMaxWords)));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Credentials lent, parse_lent(answer.body, source));
  return lent;
}

StatusOr<std::optional<Credentials>> instance_credentials(const CredentialOptions& options, HttpClient& http) {
  if (value_of(options.environment, "AWS_EC2_METADATA_DISABLED") == "true") {
    return std::nullopt;
  }
  std::string endpoint = value_of(options.environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) {
    endpoint = "http://169.254.169.254";
  }
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  CredentialOptions patient = options;
  patient.stall_timeout = std::min(options.stall_timeout, milliseconds(3'000));
  const auto request_to = [&](const std::string& method, const std::string& path, std::string header) {
    HttpRequest request{.method = method, .url = endpoint + path, .headers = {std::move(header)}};
    request.connect_timeout = std::min(options.connect_timeout, milliseconds(1'000));
    request.direct = true;
    return request;
  };
  const StatusOr<HttpAnswer> token =
      ask(patient, http, request_to("PUT", "/latest/api/token", "x-aws-ec2-metadata-token-ttl-seconds: 21600"), 2);
  if (absl::IsUnavailable(token.status())) {
    return std::nullopt;  // no such machine
  }
  KEEPSTEP_RETURN_IF_ERROR(token.status());
  if (token->status != 200 || token->body.empty() || token->body.find_first_of("\r\n") != std::string::npos) {
    return std::nullopt;
  }
  const std::string header = "x-aws-ec2-metadata-token: " + token->body;
  const std::string roles = "/latest/meta-data/iam/security-credentials/";
  KEEPSTEP_ASSIGN_OR_RETURN(const HttpAnswer role, ask(patient, http, request_to("GET", roles, header), 4));
  if (role.status == 404 || role.body.empty()) {
    return std::nullopt;  // a machine without a role
  }
  const std::string name(split(role.body, '\n')[0]);
  KEEPSTEP_ASSIGN_OR_RETURN(const HttpAnswer answer,
                            ask(patient, http, request_to("GET", roles + percent_encoded(name, false), header), 4));
  const std::string source = absl::StrFormat("the instance's role '%s'", shortened(name, kMaxWords));
  if (role.status != 200 || answer.status != 200) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no credentials: the metadata service of this instance "
                        "answers %d: %s",
                        answer.status, shortened(answer.body, kMaxWords)));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Credentials lent, parse_lent(answer.body, source));
  return lent;
}

}  // namespace keepstep::checkpoint
