// Pieces of text, without a copy.
#pragma once

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

inline std::string text_of(const Status& status) { return std::string(status.message()); }

}  // namespace keepstep::checkpoint
