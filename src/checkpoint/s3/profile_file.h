// ~/.aws/credentials and ~/.aws/config: sections of "name = value".
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "checkpoint/s3/credentials.h"

namespace keepstep::checkpoint {

struct Profile {
  std::map<std::string, std::string> values;  // of both files; those of the credentials file win
  std::string where;                          // "'x' in /home/me/.aws/credentials"
};

// The profile's name: `asked`, else AWS_PROFILE, else "default".
std::string profile_name(const Environment& environment, const std::string& asked);

// NOT_FOUND: neither file has it. PERMISSION_DENIED: a file cannot be read. INVALID_ARGUMENT: a file larger than 1 MiB.
StatusOr<Profile> read_profile(const Environment& environment, const std::string& name);

// A small file as a whole, without trailing white space. Errors name it.
StatusOr<std::string> read_small_file(const std::string& path);

}  // namespace keepstep::checkpoint
