// Finds where the values of a JSON file end: the elements of its top-level array, or values that simply follow one
// another (one object, or JSON lines, also when printed over several lines).
//
// It looks at strings and brackets only; whether a value is valid JSON is for a parser to decide. Pure; the caller
// pushes bytes, so a file of any size needs memory for one value.
#pragma once

#include <cstddef>
#include <string_view>

namespace keepstep::data {

class JsonSplitter {
 public:
  struct Found {
    enum What { kValue, kMore, kBroken } what;
    size_t begin;  // kValue: where it begins in the window;
    size_t end;    // and ends. kMore, kBroken: nothing before `begin` is needed any longer
  };

  // Looks for the next value in `window`, whose first byte follows the last dropped byte: the caller drops `end` bytes
  // after kValue, and `begin` bytes after kMore (then it passes the window again, longer). kBroken: a bracket or comma
  // without an opening bracket or a value before it; where the next value begins cannot be known.
  Found next(std::string_view window);

  // Whether the file may end here: no array is open.
  bool complete() const { return state_ != State::kInArray; }

 private:
  enum class State { kStart, kInArray, kAfterArray, kValues };

  State state_ = State::kStart;
  bool comma_ = true;  // in the array: a value may follow
  // About the value that the window holds only in part, so that no byte is examined twice:
  bool open_ = false;
  size_t seen_ = 0;
  size_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace keepstep::data
