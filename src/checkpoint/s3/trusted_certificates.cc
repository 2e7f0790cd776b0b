#include "checkpoint/s3/trusted_certificates.h"

#include <unistd.h>

namespace keepstep::checkpoint {

std::string trusted_certificates(const Environment& environment, std::span<const char* const> files) {
  if (std::string named = value_of(environment, "SSL_CERT_FILE"); !named.empty()) {
    return named;
  }
  for (const char* file : files) {
    if (access(file, R_OK) == 0) {
      return file;
    }
  }
  return "";
}

}  // namespace keepstep::checkpoint
