// The services that lend credentials: STS, the agent of a container, the metadata of an instance.
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

// What AWS_CONTAINER_CREDENTIALS_*_URI say; nullopt if neither is set.
StatusOr<std::optional<Credentials>> container_credentials(const CredentialOptions& options, HttpClient& http);

// The instance's role; nullopt if there is no such service here, or the instance has no role.
StatusOr<std::optional<Credentials>> instance_credentials(const CredentialOptions& options, HttpClient& http);

}  // namespace keepstep::checkpoint
