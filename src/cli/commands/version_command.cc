#include "cli/commands/version_command.h"

#include <gnu/libc-version.h>
#include <openssl/crypto.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/commands/print.h"
#include "cli/commands/version.h"
#include "nlohmann/json.hpp"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep version [--json]

Prints keepstep's version. With --json also the versions of the compiler and libraries that it was built with
(built_with), and of the shared libraries that this process uses, which can be updated without a new build (loaded).
)";

nlohmann::json versions() {
  const std::map<std::string, std::string> known = absl::StrSplit(KEEPSTEP_BUILT_WITH, absl::ByAnyChar("=,"));
  return {{"keepstep", kVersion},
          {"built_with", known},
          {"loaded", {{"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)}, {"glibc", gnu_get_libc_version()}}}};
}

}  // namespace

int version_main(const std::vector<std::string>& args) {
  bool as_json = false;
  for (const std::string& word : args) {
    if (word == "--help" || word == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (word != "--json") {
      print_line(stderr,
                 absl::StrFormat("keepstep version: %s: only --json is known; see keepstep version --help", word));
      return 2;
    }
    as_json = true;
  }
  if (as_json) {
    print_json(versions());
  } else {
    std::printf("keepstep %s\n", kVersion);
  }
  return 0;
}

}  // namespace keepstep::cli
