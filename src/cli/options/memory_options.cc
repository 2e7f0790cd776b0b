#include "cli/options/memory_options.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/options/given_token.h"
#include "cli/options/run_values.h"
#include "cli/options/suggest.h"

namespace keepstep::cli {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr uint64_t kMostSeconds = uint64_t{10} * 365 * 86400;

// Splits "12h" into 12 and "h".
std::optional<std::pair<uint64_t, std::string>> number_and_unit(const std::string& text, uint64_t most) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = integer_in<uint64_t>(text.substr(0, digits), 0, most);
  if (!number) {
    return std::nullopt;
  }
  return std::pair(*number, text.substr(digits));
}

std::optional<uint64_t> in_units(const std::string& text, uint64_t most, const std::map<std::string, uint64_t>& units) {
  const auto given = number_and_unit(text, most);
  const auto unit = given ? units.find(given->second) : units.end();
  if (unit == units.end() || given->first > most / unit->second) {
    return std::nullopt;
  }
  return given->first * unit->second;
}

struct Option {
  const char* name;
  const char* variable;
  std::function<void(const GivenValue&, MemoryOptions&)> take;
};

std::string no_option(const std::string& name, const std::vector<Option>& known) {
  std::vector<std::string> names = {"--background"};
  for (const Option& each : known) {
    names.emplace_back(each.name);
  }
  const std::string meant = nearest(name, names);
  return absl::StrFormat("'%s' is no option%s", name, meant.empty() ? "" : "; did you mean " + meant + "?");
}

void take_address(const GivenValue& given, const char* like, MemoryOptions& options,
                  const std::function<void(SocketAddress)>& put) {
  StatusOr<SocketAddress> address = SocketAddress::parse(given.value);
  if (address.ok()) {
    put(*std::move(address));
  } else {
    options.mistakes.push_back(
        absl::StrFormat("%s is '%s'; give a numeric address with a port, as in %s", given.where, given.value, like));
  }
}

}  // namespace

std::optional<uint64_t> memory_bytes(const std::string& text, uint64_t total_bytes) {
  std::optional<uint64_t> bytes;
  if (text.ends_with('%')) {
    const auto percent = integer_in<uint64_t>(text.substr(0, text.size() - 1), 1, 90);
    bytes = percent ? std::optional(total_bytes / 100 * *percent) : std::nullopt;
  } else {
    bytes = in_units(text, kMostBytes,
                     {{"", 1},
                      {"MB", 1'000'000},
                      {"MiB", uint64_t{1} << 20},
                      {"GB", 1'000'000'000},
                      {"GiB", uint64_t{1} << 30},
                      {"TB", 1'000'000'000'000},
                      {"TiB", uint64_t{1} << 40}});
  }
  return bytes && *bytes >= kLeastMemoryLimit ? bytes : std::nullopt;
}

std::optional<std::chrono::seconds> memory_lifetime(const std::string& text) {
  if (text == "never") {
    return std::chrono::seconds(0);
  }
  const auto seconds = in_units(text, kMostSeconds, {{"", 1}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}});
  return seconds && *seconds > 0 ? std::optional(std::chrono::seconds(*seconds)) : std::nullopt;
}

MemoryOptions parse_memory_serve(const std::vector<std::string>& args, const Environ& environ, uint64_t total_bytes) {
  MemoryOptions options{.limit_bytes = total_bytes / 100 * kMemoryPercent, .lifetime = kMemoryLifetime};
  std::optional<GivenValue> token_file;
  const std::vector<Option> known = {
      {"--limit", "KEEPSTEP_MEMORY_LIMIT",
       [&](const GivenValue& given, MemoryOptions& into) {
         const auto bytes = memory_bytes(given.value, total_bytes);
         into.limit_bytes = bytes.value_or(0);
         if (!bytes) {
           into.mistakes.push_back(absl::StrFormat(
               "%s is '%s'; give a size of at least 1 MiB, as in 64GiB, or a part of the memory up to 90%%, as in 25%%",
               given.where, given.value));
         }
       }},
      {"--lifetime", "KEEPSTEP_MEMORY_LIFETIME",
       [](const GivenValue& given, MemoryOptions& into) {
         const auto lifetime = memory_lifetime(given.value);
         into.lifetime = lifetime.value_or(kMemoryLifetime);
         if (!lifetime) {
           into.mistakes.push_back(absl::StrFormat("%s is '%s'; give a time, as in 90s, 30min, 12h or 2d, or never",
                                                   given.where, given.value));
         }
       }},
      {"--peer", "KEEPSTEP_MEMORY_PEERS",
       [](const GivenValue& given, MemoryOptions& into) {
         for (const std::string& each : std::vector<std::string>(absl::StrSplit(given.value, ',', absl::SkipEmpty()))) {
           take_address({each, given.where}, "10.0.0.7:4712", into,
                        [&](SocketAddress address) { into.peers.push_back(std::move(address)); });
         }
       }},
      {"--listen", "KEEPSTEP_MEMORY_LISTEN",
       [](const GivenValue& given, MemoryOptions& into) {
         take_address(given, "0.0.0.0:4712", into, [&](SocketAddress address) { into.listen = std::move(address); });
       }},
      {"--token-file", "KEEPSTEP_MEMORY_TOKEN_FILE",
       [&](const GivenValue& given, MemoryOptions&) { token_file = given; }},
  };
  for (const Option& option : known) {
    if (const auto value = environ(option.variable); value.has_value() && !value->empty()) {
      option.take({*value, option.variable}, options);
    }
  }
  bool peers_given = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    if (word == "--background") {
      options.background = true;
      continue;
    }
    const auto found = std::find_if(known.begin(), known.end(), [&](const Option& each) { return each.name == name; });
    if (found == known.end()) {
      options.mistakes.push_back(no_option(name, known));
      continue;
    }
    if (equals == std::string::npos && i + 1 == args.size()) {
      options.mistakes.push_back(absl::StrFormat("%s needs a value", name));
      continue;
    }
    if (name == "--peer" && !std::exchange(peers_given, true)) {
      options.peers.clear();
    }
    found->take({equals == std::string::npos ? args[++i] : word.substr(equals + 1), name}, options);
  }
  GivenToken token = given_token(token_file, environ);
  std::move(token.mistakes.begin(), token.mistakes.end(), std::back_inserter(options.mistakes));
  options.token = std::move(token.token);
  if ((!options.peers.empty() || options.listen) && !options.token && token.mistakes.empty()) {
    options.mistakes.push_back(
        "--peer and --listen need the token that all servers share: --token-file (KEEPSTEP_MEMORY_TOKEN_FILE) or "
        "KEEPSTEP_TOKEN; `openssl rand -hex 32` makes one");
  }
  return options;
}

}  // namespace keepstep::cli
