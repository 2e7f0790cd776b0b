// Which certificates to trust for https where nothing names them. Distributions keep theirs in different places, and a
// wheel's libcurl and OpenSSL, being of no distribution, know none of these.
#pragma once

#include <span>
#include <string>

#include "checkpoint/s3/credentials.h"

namespace keepstep::checkpoint {

// Debian and what derives from it; Fedora and RHEL; SUSE; others.
inline constexpr const char* kCertificateFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
};

// The file of OpenSSL's variable SSL_CERT_FILE, else the first of `files` that is there; empty if there is none: then
// no https server is trusted, and the error of the first request says how to name certificates.
std::string trusted_certificates(const Environment& environment,
                                 std::span<const char* const> files = kCertificateFiles);

}  // namespace keepstep::checkpoint
