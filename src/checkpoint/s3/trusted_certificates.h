// Which certificates to trust for https if nothing names them. Distributions store theirs in different places, and the
// libcurl and OpenSSL inside a wheel belong to no distribution, so they know none of these.
#pragma once

#include <span>
#include <string>

#include "checkpoint/s3/credentials.h"

namespace keepstep::checkpoint {

// Debian and its derivatives; Fedora and RHEL; SUSE; others.
inline constexpr const char* kCertificateFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
};

// The file that OpenSSL's variable SSL_CERT_FILE names, otherwise the first of `files` that exists; empty if there is
// none: then no https server is trusted, and the error of the first request says how to name certificates.
std::string trusted_certificates(const Environment& environment,
                                 std::span<const char* const> files = kCertificateFiles);

}  // namespace keepstep::checkpoint
