// Arbitrary bytes as a JSON file, in two pieces or more: the values found must not depend on where it was cut, and must
// be in order. The first byte determines the length of the pieces.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/build/json_splitter.h"

namespace {

using keepstep::data::JsonSplitter;

std::vector<std::string> values(std::string_view text, size_t piece) {
  JsonSplitter splitter;
  std::vector<std::string> found;
  size_t begin = 0;  // of the window
  size_t end = 0;
  while (true) {
    const JsonSplitter::Found next = splitter.next(text.substr(begin, end - begin));
    KEEPSTEP_CHECK(next.begin <= end - begin, "outside the window");
    if (next.what == JsonSplitter::Found::kBroken) {
      found.emplace_back("broken");
      return found;
    }
    if (next.what == JsonSplitter::Found::kValue) {
      KEEPSTEP_CHECK(next.begin < next.end && next.end <= end - begin, "an empty value, or one outside the window");
      found.emplace_back(text.substr(begin + next.begin, next.end - next.begin));
      begin += next.end;
      continue;
    }
    begin += next.begin;
    if (end == text.size()) {
      found.emplace_back(text.substr(begin));
      return found;
    }
    end = std::min(text.size(), end + piece);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  KEEPSTEP_CHECK(values(text, size) == values(text, 1 + data[0] % 7), "cut elsewhere, other values");
  return 0;
}
