#include "cli/options/run_values.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "cli/options/run_option_table.h"

namespace keepstep::cli {

std::optional<NodeRange> number_of_nodes(const std::string& text) {
  const size_t colon = text.find(':');
  const auto least = integer_in<uint32_t>(text.substr(0, colon), 1, kMaxNodes);
  const auto most = colon == std::string::npos ? least : integer_in<uint32_t>(text.substr(colon + 1), 1, kMaxNodes);
  return least && most && *least <= *most ? std::optional(NodeRange{*least, *most}) : std::nullopt;
}

std::optional<double> seconds_up_to(const std::string& text, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value <= most)) {
    return std::nullopt;
  }
  return value;
}

std::optional<brain::HangConfig> hang_timeout(const std::string& text, double most) {
  brain::HangConfig config;
  if (text == "auto" || text == "off") {
    config.mode = text == "auto" ? brain::HangMode::kAuto : brain::HangMode::kOff;
    return config;
  }
  const std::optional<double> seconds = seconds_up_to(text, most);
  if (!seconds.has_value()) {
    return std::nullopt;
  }
  config.mode = brain::HangMode::kFixed;
  config.fixed = std::chrono::duration_cast<brain::Time>(std::chrono::duration<double>(*seconds));
  return config;
}

std::optional<agent::StreamsByRank> streams(const std::string& text, uint32_t ranks) {
  agent::StreamsByRank result;
  if (const auto all = integer_in<int>(text, 0, 3)) {
    result.all = *all;
    return result;
  }
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || ranks == 0) {
      return std::nullopt;
    }
    const auto rank = integer_in<uint32_t>(part.substr(0, colon), 0, ranks - 1);
    const auto value = integer_in<int>(part.substr(colon + 1), 0, 3);
    if (!rank || !value || !result.by_rank.emplace(*rank, *value).second) {
      return std::nullopt;
    }
  }
  return result;
}

std::optional<std::vector<uint32_t>> rank_list(const std::string& text, uint32_t ranks) {
  std::vector<uint32_t> result;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto rank = ranks == 0 ? std::nullopt : integer_in<uint32_t>(part, 0, ranks - 1);
    if (!rank) {
      return std::nullopt;
    }
    result.push_back(*rank);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::optional<std::pair<std::string, uint16_t>> host_and_port(const std::string& text) {
  std::string host = text;
  std::string port = "0";
  const size_t bracket = text.rfind(']');
  const size_t colon = text.rfind(':');
  const bool many_colons = text.find(':') != colon;  // an IPv6 address without brackets has no port
  if (colon != std::string::npos && (bracket == std::string::npos ? !many_colons : colon > bracket)) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.starts_with('[') != host.ends_with(']')) {
    return std::nullopt;
  }
  if (host.starts_with('[')) {
    host = host.substr(1, host.size() - 2);
  }
  const auto number = integer_in<uint16_t>(port, 0, 65535);
  if (!number || text.empty() || host.find(' ') != std::string::npos) {
    return std::nullopt;
  }
  return std::pair(host, *number);
}

}  // namespace keepstep::cli
