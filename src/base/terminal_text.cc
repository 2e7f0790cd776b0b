#include "base/terminal_text.h"

#include <cstdint>
#include <cstdio>

namespace keepstep {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not valid UTF-8
};

// RFC 3629: the shortest form only, no surrogates, nothing above 10FFFF.
Character first_of(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) {
    return {};
  }
  uint32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return {};
    }
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool valid = code >= least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return valid ? Character{code, bytes} : Character{};
}

bool obeyed(uint32_t code) {
  return (code < 0x20 && code != '\t' && code != '\n') || (code >= 0x7f && code <= 0x9f) || code == 0x61c ||
         code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character first = first_of(text);
    const size_t bytes = first.bytes == 0 ? 1 : first.bytes;
    if (first.bytes != 0 && !obeyed(first.code)) {
      shown += text.substr(0, bytes);
    } else {
      const uint32_t code = first.bytes == 0 ? static_cast<uint8_t>(text[0]) : first.code;
      char escape[16];
      std::snprintf(escape, sizeof(escape), code <= 0xff ? "\\x%02x" : "\\u%04x", code);
      shown += escape;
    }
    text.remove_prefix(bytes);
  }
  return shown;
}

}  // namespace keepstep
