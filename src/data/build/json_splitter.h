// Where the values of a JSON file end: the elements of its top-level array, or values that simply follow one another
// (an object, or JSON lines, also when they are printed over several lines).
//
// It looks at strings and brackets only; whether a value is JSON is for a parser to say. Pure; bytes are pushed, so a
// file of any size needs memory for one value.
#pragma once

#include <cstddef>
#include <string_view>

namespace keepstep::data {

class JsonSplitter {
 public:
  struct Found {
    enum What { kValue, kMore, kBroken } what;
    size_t begin;  // kValue: where it begins in the window;
    size_t end;    // and ends. kMore, kBroken: nothing before `begin` is needed any more
  };

  // Looks for the next value in `window`, whose first byte follows what was dropped last: `end` bytes after kValue,
  // `begin` bytes after kMore (then the window is given again, longer). kBroken: a bracket or comma that nothing opened
  // or asked for; where a value begins after it cannot be known.
  Found next(std::string_view window);

  // Whether the file may end here: no array is open.
  bool complete() const { return state_ != State::kInArray; }

 private:
  enum class State { kStart, kInArray, kAfterArray, kValues };

  State state_ = State::kStart;
  bool comma_ = true;  // in the array: a value may come
  // Of the value that the window does not hold completely, so that no byte is looked at twice:
  bool open_ = false;
  size_t seen_ = 0;
  size_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace keepstep::data
