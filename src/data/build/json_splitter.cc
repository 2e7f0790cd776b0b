#include "data/build/json_splitter.h"

namespace keepstep::data {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

JsonSplitter::Found JsonSplitter::next(std::string_view window) {
  size_t begin = 0;
  if (!open_) {
    while (begin < window.size()) {
      const char c = window[begin];
      if (is_space(c)) {
        ++begin;
      } else if (state_ == State::kStart && c == '[') {
        state_ = State::kInArray;
        ++begin;
      } else if (state_ == State::kInArray && c == ',' && !comma_) {
        comma_ = true;
        ++begin;
      } else if (state_ == State::kInArray && c == ']') {
        state_ = State::kAfterArray;
        ++begin;
      } else {
        break;
      }
    }
    if (begin == window.size()) {
      return {Found::kMore, begin, begin};
    }
    const char first = window[begin];
    if (state_ == State::kAfterArray || (state_ == State::kInArray && !comma_) || first == ']' || first == '}' ||
        first == ',' || first == ':') {
      return {Found::kBroken, begin, begin};
    }
    state_ = state_ == State::kStart ? State::kValues : state_;
    comma_ = false;
    open_ = true;
    seen_ = 0;
    depth_ = 0;
    in_string_ = false;
    escaped_ = false;
  }
  for (size_t at = begin + seen_; at < window.size(); ++at) {
    const char c = window[at];
    bool ended = false;  // by this byte
    if (in_string_) {
      ended = !escaped_ && c == '"' && depth_ == 0;
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (depth_ == 0) {  // closes the array around a number or word
        open_ = false;
        return {Found::kValue, begin, at};
      }
      ended = --depth_ == 0;
    } else if (depth_ == 0 && (is_space(c) || c == ',')) {  // a number or word ends
      open_ = false;
      return {Found::kValue, begin, at};
    }
    if (ended) {
      open_ = false;
      return {Found::kValue, begin, at + 1};
    }
  }
  seen_ = window.size() - begin;
  return {Found::kMore, begin, begin};
}

}  // namespace keepstep::data
