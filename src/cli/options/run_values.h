// Parses the values of `keepstep run`'s options. Each function returns std::nullopt if the text is not such a value.
// Pure.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/job/job_spec.h"

namespace keepstep::cli {

// A decimal integer between `least` and `most`, without surrounding text.
template <typename Integer>
std::optional<Integer> integer_in(const std::string& text, Integer least, Integer most) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return std::nullopt;
  }
  return value;
}

// Numbers of nodes: "2", or "2:8" with the minimum first. If one number is given, both are the same.
struct NodeRange {
  uint32_t least = 1;
  uint32_t most = 1;
};
std::optional<NodeRange> number_of_nodes(const std::string& text);

// Seconds, above 0 and at most `most`.
std::optional<double> seconds_up_to(const std::string& text, double most);

// "auto", "off", or seconds above 0 and at most `most`.
std::optional<brain::HangConfig> hang_timeout(const std::string& text, double most);

// "3", or "0:3,1:2" with each rank below `ranks` and listed once.
std::optional<agent::StreamsByRank> streams(const std::string& text, uint32_t ranks);

// "0,2" with each rank below `ranks`; sorted, without duplicates.
std::optional<std::vector<uint32_t>> rank_list(const std::string& text, uint32_t ranks);

// "host", "host:29400", "[::1]:29400" or ":29400"; port 0 if none is given.
std::optional<std::pair<std::string, uint16_t>> host_and_port(const std::string& text);

}  // namespace keepstep::cli
