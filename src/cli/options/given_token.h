// The job token as a user gives it: a file, else KEEPSTEP_TOKEN.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/token.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

struct GivenToken {
  std::optional<JobToken> token;      // none: none was given, or there are mistakes
  std::vector<std::string> mistakes;  // they never show the token
};
// `file`: the value of --token-file, if it was given; then it alone counts.
GivenToken given_token(const std::optional<GivenValue>& file, const Environ& environ);

}  // namespace keepstep::cli
