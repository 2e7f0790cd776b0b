#include "cli/options/given_token.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace keepstep::cli {

GivenToken given_token(const std::optional<GivenValue>& file, const Environ& environ) {
  GivenToken given;
  std::string text = environ("KEEPSTEP_TOKEN").value_or("");
  std::string where = "KEEPSTEP_TOKEN";
  if (file.has_value()) {
    std::ifstream in(file->value);
    if (!in || std::filesystem::is_directory(file->value)) {
      given.mistakes.push_back(absl::StrFormat(
          "%s is '%s'; that file cannot be read; give a file with the job token (openssl rand -hex 32 makes one)",
          file->where, file->value));
      return given;
    }
    struct stat info{};
    if (stat(file->value.c_str(), &info) == 0 && (info.st_mode & (S_IRGRP | S_IROTH)) != 0) {
      given.mistakes.push_back(absl::StrFormat(
          "%s is '%s', which other users of this machine can read: with the token anyone can join the job or end it; "
          "chmod 600 '%s', and make a new token if somebody may have seen it",
          file->where, file->value, file->value));
      return given;
    }
    text = (std::stringstream() << in.rdbuf()).str();
    where = "the token in " + file->value;
  } else if (text.empty()) {
    return given;
  }
  if (StatusOr<JobToken> token = JobToken::parse(text); token.ok()) {
    given.token = *std::move(token);
  } else {
    given.mistakes.push_back(absl::StrFormat("%s: %s", where, std::string(token.status().message())));
  }
  return given;
}

}  // namespace keepstep::cli
