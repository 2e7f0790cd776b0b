#include "checkpoint/s3/profile_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "base/fd.h"
#include "checkpoint/disk_files.h"
#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

std::string stripped(std::string_view text) {
  std::string result(text);
  absl::StripAsciiWhitespace(&result);
  return result;
}

std::string place_of(const Environment& environment, const char* variable, const char* name) {
  std::string given = value_of(environment, variable);
  if (!given.empty()) {
    return given;
  }
  const std::string home = value_of(environment, "HOME");
  return home.empty() ? "" : absl::StrFormat("%s/.aws/%s", home, name);
}

// Adds the settings in `section` of `text` that `values` does not have yet.
bool add_section(const std::string& text, const std::string& section, std::map<std::string, std::string>* values) {
  bool found = false;
  bool inside = false;
  for (const std::string_view raw : split(text, '\n')) {
    const std::string line = stripped(raw);
    if (line.empty() || line[0] == '#' || line[0] == ';') {
      continue;
    }
    if (line[0] == '[') {
      inside = stripped(std::string_view(line).substr(1, line.find(']') - 1)) == section;
      found |= inside;
      continue;
    }
    const size_t equals = line.find('=');
    // Indented lines belong to a nested setting ("s3 =").
    if (inside && equals != std::string::npos && !absl::ascii_isspace(static_cast<unsigned char>(raw[0]))) {
      std::string name = stripped(std::string_view(line).substr(0, equals));
      absl::AsciiStrToLower(&name);
      values->emplace(std::move(name), stripped(std::string_view(line).substr(equals + 1)));
    }
  }
  return found;
}

}  // namespace

std::string profile_name(const Environment& environment, const std::string& asked) {
  if (!asked.empty()) {
    return asked;
  }
  const std::string named = value_of(environment, "AWS_PROFILE");
  return named.empty() ? "default" : named;
}

StatusOr<std::string> read_small_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return disk_error("open", path, errno);
  }
  std::string text;
  char block[4096];
  while (true) {
    const ssize_t got = ::read(fd.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return disk_error("read", path, errno);
    }
    if (got == 0) {
      absl::StripTrailingAsciiWhitespace(&text);
      return text;
    }
    text.append(block, static_cast<size_t>(got));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrFormat("'%s' is larger than 1 MiB: it is something else", path));
    }
  }
}

StatusOr<Profile> read_profile(const Environment& environment, const std::string& name) {
  const std::string secrets = place_of(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const std::string config = place_of(environment, "AWS_CONFIG_FILE", "config");
  Profile profile;
  for (const auto& [path, section] :
       {std::pair{secrets, name}, std::pair{config, name == "default" ? name : "profile " + name}}) {
    if (path.empty()) {
      continue;
    }
    const StatusOr<std::string> text = read_small_file(path);
    if (absl::IsNotFound(text.status())) {
      continue;
    }
    KEEPSTEP_RETURN_IF_ERROR(text.status());
    if (add_section(*text, section, &profile.values)) {
      profile.where += absl::StrFormat("%s%s", profile.where.empty() ? "'" + name + "' in " : " and ", path);
    }
  }
  if (profile.where.empty()) {
    return absl::NotFoundError(absl::StrFormat("there is no profile '%s' in %s or %s", name,
                                               secrets.empty() ? "~/.aws/credentials" : secrets,
                                               config.empty() ? "~/.aws/config" : config));
  }
  return profile;
}

}  // namespace keepstep::checkpoint
