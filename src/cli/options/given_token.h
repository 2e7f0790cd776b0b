// The job token given by a user: in a file, else in KEEPSTEP_TOKEN.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/token.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

struct GivenToken {
  std::optional<JobToken> token;      // std::nullopt: none was given, or there are mistakes
  std::vector<std::string> mistakes;  // they never show the token
};
// `file`: the value of --token-file, if given; it then takes precedence.
GivenToken given_token(const std::optional<GivenValue>& file, const Environ& environ);

}  // namespace keepstep::cli
