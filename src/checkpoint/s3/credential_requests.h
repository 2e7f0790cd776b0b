// The services that issue credentials: STS, a container's agent, an instance's metadata service.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/s3/credentials.h"

namespace keepstep::checkpoint {

// AssumeRoleWithWebIdentity, with the token in `token_file`. `session`: a name for the audit log.
StatusOr<Credentials> assume_role_with_web_identity(const CredentialOptions& options, HttpClient& http,
                                                    const std::string& role, const std::string& token_file,
                                                    const std::string& session);

// From where AWS_CONTAINER_CREDENTIALS_*_URI point; std::nullopt if neither is set.
StatusOr<std::optional<Credentials>> container_credentials(const CredentialOptions& options, HttpClient& http);

// The instance's role; std::nullopt if there is no such service here, or the instance has no role.
StatusOr<std::optional<Credentials>> instance_credentials(const CredentialOptions& options, HttpClient& http);

}  // namespace keepstep::checkpoint
