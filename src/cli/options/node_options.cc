#include "cli/options/node_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/options/given_token.h"
#include "cli/options/run_values.h"

namespace keepstep::cli {
namespace {

constexpr size_t kMaxNodes = 1024;  // each is connected to each
constexpr const char* kTokenFile = "KEEPSTEP_STORE_TOKEN_FILE";

std::optional<JobToken> token_of(const Environ& environ, std::vector<std::string>& mistakes) {
  const std::string file = environ(kTokenFile).value_or("");
  GivenToken given = given_token(file.empty() ? std::nullopt : std::optional(GivenValue{file, kTokenFile}), environ);
  if (!given.token && given.mistakes.empty()) {
    given.mistakes.push_back(absl::StrFormat(
        "several nodes need a token, the same on all: set KEEPSTEP_TOKEN, or %s to a file with mode 0600; `openssl "
        "rand -hex 32` makes one",
        kTokenFile));
  }
  std::move(given.mistakes.begin(), given.mistakes.end(), std::back_inserter(mistakes));
  return given.token;
}

}  // namespace

NodeOptions parse_node(const std::vector<std::string>& args, const Environ& environ) {
  NodeOptions options;
  std::map<std::string, std::string> given = {{"--job", ""}, {"--nodes", ""}, {"--node", ""}};
  for (size_t i = 0; i < args.size(); i += 2) {
    const auto option = given.find(args[i]);
    if (option == given.end()) {
      options.mistakes.push_back(absl::StrFormat("'%s' is no option", args[i]));
    } else if (i + 1 == args.size() || args[i + 1].empty()) {
      options.mistakes.push_back(absl::StrFormat("%s needs a value", args[i]));
    } else {
      option->second = args[i + 1];
    }
  }
  options.job = given["--job"];
  if (options.job.empty() && options.mistakes.empty()) {
    options.mistakes.emplace_back("--job NAME is missing");
  }
  std::vector<SocketAddress> addresses;
  for (const std::string& each : std::vector<std::string>(absl::StrSplit(given["--nodes"], ',', absl::SkipEmpty()))) {
    StatusOr<SocketAddress> address = SocketAddress::parse(each);
    if (!address.ok() || address->port == 0) {
      options.mistakes.push_back(
          absl::StrFormat("--nodes has '%s'; give numeric addresses with ports, as in 10.0.0.7:29411", each));
    } else if (std::find(addresses.begin(), addresses.end(), *address) != addresses.end()) {
      options.mistakes.push_back(absl::StrFormat("--nodes has '%s' twice", each));
    } else {
      addresses.push_back(*std::move(address));
    }
  }
  if (given["--nodes"].empty() && given["--node"].empty()) {
    return options;
  }
  const auto self = integer_in<brain::NodeId>(given["--node"], 0, kMaxNodes - 1);
  if (options.mistakes.empty() && (addresses.size() > kMaxNodes || !self || *self >= addresses.size())) {
    options.mistakes.push_back(
        absl::StrFormat("--nodes has %d addresses (at most %d), and --node is '%s'; it is the place of this node's "
                        "address among them, from 0",
                        addresses.size(), kMaxNodes, given["--node"]));
  }
  const std::optional<JobToken> token = token_of(environ, options.mistakes);
  if (options.mistakes.empty()) {
    options.nodes = agent::StoreNodes{given["--nodes"], std::move(addresses), *self, *token};
  }
  return options;
}

}  // namespace keepstep::cli
