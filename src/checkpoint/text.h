// Pieces of text, without a copy.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace keepstep::checkpoint {

// "a//b" at '/': "a", "", "b". At least one piece.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return pieces;
    }
    text.remove_prefix(at + 1);
  }
}

inline bool take_prefix(std::string_view& text, std::string_view prefix) {
  const bool there = text.starts_with(prefix);
  if (there) {
    text.remove_prefix(prefix.size());
  }
  return there;
}

// The number at its beginning; 0 if there is none.
inline uint64_t number_of(std::string_view text) {
  uint64_t number = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// For messages: at most `most` characters, spaces for those that cannot be shown.
inline std::string shortened(std::string_view text, size_t most = 300) {
  std::string result(text.substr(0, most));
  std::replace_if(result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return result;
}

inline std::string text_of(const Status& status) { return std::string(status.message()); }

}  // namespace keepstep::checkpoint
