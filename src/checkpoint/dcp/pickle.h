// Reads a pickle without running it: the result is a tree of values in which classes and functions are mere names.
//
// Python's pickles are programs; here they are data. Only names that the caller knows are accepted. A call of one of
// them is stored as "this name, with these arguments", and nothing is ever looked up or called. So the worst a foreign
// file can do is be refused. Supports protocols 2 to 5, and of their opcodes those that plain data and dataclasses need
// (https://docs.python.org/3/library/pickletools.html).
//
// Values are shared as in the pickle, so a tree may be a graph and, in a hostile file, have cycles: limit the depth
// when you walk it, and count the values you visit.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace keepstep::checkpoint::dcp {

enum class PickleKind : uint8_t { kNone, kBool, kInt, kFloat, kText, kBytes, kTuple, kList, kDict, kGlobal, kObject };

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;          // of kBool and kInt
  double real = 0;              // of kFloat
  std::string_view text;        // of kText and kBytes; of kGlobal "module name". Points into the pickle or the tree
  std::vector<uint32_t> items;  // of tuples and lists; of dicts key, value, key, value
  // Of kObject: the kGlobal that was called, the tuple of its arguments, and its state (a value, or kNothing).
  uint32_t callee = 0;
  uint32_t arguments = 0;
  uint32_t state = 0;
};

class PickleTree {
 public:
  static constexpr uint32_t kNothing = UINT32_MAX;

  const PickleValue& at(uint32_t index) const { return values[index]; }
  const PickleValue& root() const { return values[root_index]; }

  std::vector<PickleValue> values;
  uint32_t root_index = 0;
  std::vector<std::string> names;  // what `text` of a kGlobal points into; does not grow after reading
};

struct PickleLimits {
  uint64_t bytes = uint64_t{1} << 29;
  uint32_t values = 1u << 25;
};

// `bytes` must outlive the tree. `known(module, name)`: whether the pickle may name this class or function. Errors:
// PERMISSION_DENIED names a class that it may not; INVALID_ARGUMENT gives the byte at which the input stops being a
// pickle, or the opcode that is not supported; RESOURCE_EXHAUSTED names the limit.
StatusOr<PickleTree> read_pickle(std::span<const std::byte> bytes,
                                 const std::function<bool(std::string_view module, std::string_view name)>& known,
                                 const PickleLimits& limits = {});

}  // namespace keepstep::checkpoint::dcp
