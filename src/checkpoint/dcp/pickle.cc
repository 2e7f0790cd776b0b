#include "checkpoint/dcp/pickle.h"

#include <bit>
#include <cstring>
#include <deque>

#include "absl/strings/str_format.h"

namespace keepstep::checkpoint::dcp {
namespace {

// Names of opcodes as in CPython's Lib/pickle.py.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> bytes, const std::function<bool(std::string_view, std::string_view)>& known,
            const PickleLimits& limits)
      : bytes_(bytes), known_(known), limits_(limits) {}

  StatusOr<PickleTree> read() {
    if (bytes_.size() > limits_.bytes) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("a pickle of %d bytes; at most %d are read", bytes_.size(), limits_.bytes));
    }
    for (;;) {
      start_ = at_;
      uint64_t op = 0;
      KEEPSTEP_RETURN_IF_ERROR(number(1, op));
      if (op == kStop) {
        break;
      }
      KEEPSTEP_RETURN_IF_ERROR(step(static_cast<uint8_t>(op)));
    }
    if (stack_.size() != 1 || stack_.back() == kMarker) {
      return bad("it ends with more or less than one value");
    }
    tree_.root_index = stack_.back();
    tree_.names.assign(names_.begin(), names_.end());
    size_t next = 0;
    for (PickleValue& value : tree_.values) {  // in the order in which the names were added
      if (value.kind == PickleKind::kGlobal) {
        value.text = tree_.names[next++];
      }
    }
    return std::move(tree_);
  }

 private:
  static constexpr uint32_t kMarker = UINT32_MAX;

  Status bad(std::string_view why) const {
    return absl::InvalidArgumentError(absl::StrFormat("not a pickle that keepstep reads, at byte %d: %s", start_, why));
  }

  Status number(size_t width, uint64_t& out) {
    if (bytes_.size() - at_ < width) {
      return bad("it is cut off");
    }
    out = 0;
    for (size_t i = 0; i < width; ++i) {
      out |= std::to_integer<uint64_t>(bytes_[at_ + i]) << (8 * i);
    }
    at_ += width;
    return absl::OkStatus();
  }

  Status text(uint64_t length, std::string_view& out) {
    if (bytes_.size() - at_ < length) {
      return bad("a text is longer than the rest of it");
    }
    out = {reinterpret_cast<const char*>(bytes_.data()) + at_, static_cast<size_t>(length)};
    at_ += length;
    return absl::OkStatus();
  }

  Status line(std::string_view& out) {
    const auto* begin = reinterpret_cast<const char*>(bytes_.data()) + at_;
    const void* end = std::memchr(begin, '\n', bytes_.size() - at_);
    if (end == nullptr) {
      return bad("a line has no end");
    }
    out = {begin, static_cast<size_t>(static_cast<const char*>(end) - begin)};
    at_ += out.size() + 1;
    return absl::OkStatus();
  }

  Status push(PickleValue value) {
    if (tree_.values.size() >= limits_.values) {
      return absl::ResourceExhaustedError(absl::StrFormat("a pickle of more than %d values", limits_.values));
    }
    stack_.push_back(static_cast<uint32_t>(tree_.values.size()));
    tree_.values.push_back(std::move(value));
    return absl::OkStatus();
  }

  Status push(PickleKind kind, int64_t integer = 0) {
    PickleValue value;
    value.kind = kind;
    value.integer = integer;
    return push(std::move(value));
  }

  Status push_text(PickleKind kind, size_t width) {
    uint64_t length = 0;
    KEEPSTEP_RETURN_IF_ERROR(number(width, length));
    PickleValue value;
    value.kind = kind;
    KEEPSTEP_RETURN_IF_ERROR(text(length, value.text));
    return push(std::move(value));
  }

  Status push_global(std::string_view module, std::string_view name) {
    if (!known_(module, name)) {
      return absl::PermissionDeniedError(absl::StrFormat(
          "it names '%s.%s' (byte %d), which does not belong there; nothing of it was run", module, name, start_));
    }
    if (names_.size() >= 1u << 20) {
      return absl::ResourceExhaustedError("a pickle that names classes more than a million times");
    }
    names_.push_back(absl::StrFormat("%s %s", module, name));
    return push(PickleKind::kGlobal);
  }

  // Pops the top value.
  Status pop(uint32_t& out) {
    if (stack_.empty() || stack_.back() == kMarker) {
      return bad("a value is missing");
    }
    out = stack_.back();
    stack_.pop_back();
    return absl::OkStatus();
  }

  Status top(PickleKind kind, PickleValue*& out) {
    if (stack_.empty() || stack_.back() == kMarker || tree_.values[stack_.back()].kind != kind) {
      return bad("there is no value of the kind to add to");
    }
    out = &tree_.values[stack_.back()];
    return absl::OkStatus();
  }

  // Pops everything above the last mark, and the mark.
  Status pop_marked(std::vector<uint32_t>& out) {
    size_t begin = stack_.size();
    while (begin > 0 && stack_[begin - 1] != kMarker) {
      --begin;
    }
    if (begin == 0) {
      return bad("a mark is missing");
    }
    out.assign(stack_.begin() + static_cast<ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin - 1);
    return absl::OkStatus();
  }

  Status push_tuple(size_t count) {
    PickleValue value;
    value.kind = PickleKind::kTuple;
    value.items.resize(count);
    for (size_t i = count; i-- > 0;) {
      KEEPSTEP_RETURN_IF_ERROR(pop(value.items[i]));
    }
    return push(std::move(value));
  }

  Status call() {
    PickleValue value;
    value.kind = PickleKind::kObject;
    value.state = PickleTree::kNothing;
    KEEPSTEP_RETURN_IF_ERROR(pop(value.arguments));
    KEEPSTEP_RETURN_IF_ERROR(pop(value.callee));
    if (tree_.at(value.callee).kind != PickleKind::kGlobal || tree_.at(value.arguments).kind != PickleKind::kTuple) {
      return bad("a call of something that is no class, or without arguments");
    }
    return push(std::move(value));
  }

  Status get(size_t width) {
    uint64_t place = 0;
    KEEPSTEP_RETURN_IF_ERROR(number(width, place));
    if (place >= memo_.size() || memo_[place] == kMarker) {
      return bad("it refers to a value that was not kept");
    }
    stack_.push_back(memo_[place]);
    return absl::OkStatus();
  }

  Status keep(uint64_t place) {
    if (stack_.empty() || stack_.back() == kMarker) {
      return bad("nothing is there to be kept");
    }
    // Python numbers them from 0, and each takes at least one byte: the list is no longer than the file.
    if (place >= bytes_.size()) {
      return bad("it keeps a value under a number that Python does not give");
    }
    if (place >= memo_.size()) {
      memo_.resize(place + 1, kMarker);
    }
    kept_ += memo_[place] == kMarker ? 1 : 0;
    memo_[place] = stack_.back();
    return absl::OkStatus();
  }

  Status add_items(bool marked) {
    std::vector<uint32_t> added(2);
    if (marked) {
      KEEPSTEP_RETURN_IF_ERROR(pop_marked(added));
    } else {
      KEEPSTEP_RETURN_IF_ERROR(pop(added[1]));
      KEEPSTEP_RETURN_IF_ERROR(pop(added[0]));
    }
    PickleValue* dict = nullptr;
    if (!stack_.empty() && stack_.back() != kMarker && tree_.at(stack_.back()).kind == PickleKind::kObject) {
      dict = &tree_.values[stack_.back()];  // an OrderedDict, or another object that is filled after its construction
    } else {
      KEEPSTEP_RETURN_IF_ERROR(top(PickleKind::kDict, dict));
    }
    if (added.size() % 2 != 0) {
      return bad("a key without a value");
    }
    dict->items.insert(dict->items.end(), added.begin(), added.end());
    return absl::OkStatus();
  }

  Status long1() {
    uint64_t width = 0;
    KEEPSTEP_RETURN_IF_ERROR(number(1, width));
    if (width > 8) {
      return bad("a number of more than 64 bits");
    }
    uint64_t value = 0;
    KEEPSTEP_RETURN_IF_ERROR(number(width, value));
    if (width > 0 && width < 8 && (value >> (8 * width - 1)) != 0) {
      value |= ~uint64_t{0} << (8 * width);  // two's complement
    }
    return push(PickleKind::kInt, static_cast<int64_t>(value));
  }

  Status step(uint8_t op) {
    uint64_t value = 0;
    uint32_t index = 0;
    switch (op) {
      case kProto:
        KEEPSTEP_RETURN_IF_ERROR(number(1, value));
        return value >= 2 && value <= 5 ? absl::OkStatus()
                                        : bad(absl::StrFormat("protocol %d; 2 to 5 are read", value));
      case kFrame:
        return number(8, value);
      case kMark:
        stack_.push_back(kMarker);
        return absl::OkStatus();
      case kPop:
        if (stack_.empty()) {
          return bad("a value is missing");
        }
        stack_.pop_back();
        return absl::OkStatus();
      case kPopMark: {
        std::vector<uint32_t> gone;
        return pop_marked(gone);
      }
      case kNone:
        return push(PickleKind::kNone);
      case kNewTrue:
      case kNewFalse:
        return push(PickleKind::kBool, op == kNewTrue ? 1 : 0);
      case kBinInt:
        KEEPSTEP_RETURN_IF_ERROR(number(4, value));
        return push(PickleKind::kInt, static_cast<int32_t>(value));
      case kBinInt1:
      case kBinInt2:
        KEEPSTEP_RETURN_IF_ERROR(number(op == kBinInt1 ? 1 : 2, value));
        return push(PickleKind::kInt, static_cast<int64_t>(value));
      case kLong1:
        return long1();
      case kBinFloat: {
        KEEPSTEP_RETURN_IF_ERROR(number(8, value));
        PickleValue real;
        real.kind = PickleKind::kFloat;
        real.real = std::bit_cast<double>(__builtin_bswap64(value));  // the one big-endian number of the format
        return push(std::move(real));
      }
      case kShortBinUnicode:
        return push_text(PickleKind::kText, 1);
      case kBinUnicode:
        return push_text(PickleKind::kText, 4);
      case kBinUnicode8:
        return push_text(PickleKind::kText, 8);
      case kShortBinBytes:
        return push_text(PickleKind::kBytes, 1);
      case kBinBytes:
        return push_text(PickleKind::kBytes, 4);
      case kEmptyTuple:
        return push_tuple(0);
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push_tuple(op - kTuple1 + 1);
      case kTuple: {
        PickleValue tuple;
        tuple.kind = PickleKind::kTuple;
        KEEPSTEP_RETURN_IF_ERROR(pop_marked(tuple.items));
        return push(std::move(tuple));
      }
      case kEmptyList:
        return push(PickleKind::kList);
      case kEmptyDict:
        return push(PickleKind::kDict);
      case kAppend:
      case kAppends: {
        std::vector<uint32_t> added(1);
        KEEPSTEP_RETURN_IF_ERROR(op == kAppend ? pop(added[0]) : pop_marked(added));
        PickleValue* list = nullptr;
        KEEPSTEP_RETURN_IF_ERROR(top(PickleKind::kList, list));
        list->items.insert(list->items.end(), added.begin(), added.end());
        return absl::OkStatus();
      }
      case kSetItem:
      case kSetItems:
        return add_items(op == kSetItems);
      case kGlobal: {
        std::string_view module;
        std::string_view name;
        KEEPSTEP_RETURN_IF_ERROR(line(module));
        KEEPSTEP_RETURN_IF_ERROR(line(name));
        return push_global(module, name);
      }
      case kStackGlobal: {
        uint32_t module = 0;
        KEEPSTEP_RETURN_IF_ERROR(pop(index));
        KEEPSTEP_RETURN_IF_ERROR(pop(module));
        if (tree_.at(index).kind != PickleKind::kText || tree_.at(module).kind != PickleKind::kText) {
          return bad("the name of a class is no text");
        }
        return push_global(tree_.at(module).text, tree_.at(index).text);
      }
      case kNewObj:
      case kReduce:
        return call();
      case kBuild: {
        KEEPSTEP_RETURN_IF_ERROR(pop(index));
        PickleValue* object = nullptr;
        KEEPSTEP_RETURN_IF_ERROR(top(PickleKind::kObject, object));
        object->state = index;
        return absl::OkStatus();
      }
      case kMemoize:
        return keep(kept_);
      case kBinPut:
      case kLongBinPut:
        KEEPSTEP_RETURN_IF_ERROR(number(op == kBinPut ? 1 : 4, value));
        return keep(value);
      case kBinGet:
        return get(1);
      case kLongBinGet:
        return get(4);
      default:
        return bad(absl::StrFormat("opcode 0x%02x is not one that data needs", op));
    }
  }

  std::span<const std::byte> bytes_;
  const std::function<bool(std::string_view, std::string_view)>& known_;
  PickleLimits limits_;
  size_t at_ = 0;
  size_t start_ = 0;  // of the current opcode
  PickleTree tree_;
  std::deque<std::string> names_;
  std::vector<uint32_t> stack_;
  std::vector<uint32_t> memo_;  // by number; kMarker if there is none
  uint64_t kept_ = 0;           // how many there are
};

}  // namespace

StatusOr<PickleTree> read_pickle(std::span<const std::byte> bytes,
                                 const std::function<bool(std::string_view, std::string_view)>& known,
                                 const PickleLimits& limits) {
  return Unpickler(bytes, known, limits).read();
}

}  // namespace keepstep::checkpoint::dcp
