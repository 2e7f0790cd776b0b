#include "comm/collectives/agreement.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/collectives/canonical_reduce.h"
#include "comm/collectives/canonical_sum.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {
namespace {

bool reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter; }
bool has_root(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather || kind == Kind::kScatter;
}

std::string describe(const Group& group, const Descriptor& descriptor) {
  const auto kind = static_cast<Kind>(descriptor.kind);
  if (kind == Kind::kInvalid) {
    return "a call that was refused there, see its own error";
  }
  if (kind == Kind::kBarrier || kind == Kind::kAllToAll) {
    return name(kind);
  }
  std::vector<std::string> parts;
  if (kind == Kind::kAllReduceCanonical) {
    const auto type = static_cast<DataType>(descriptor.dtype);
    parts.push_back(absl::StrCat(descriptor.bytes / size_of(type), " x ", name(type)));
    parts.push_back(absl::StrCat("over ", descriptor.root, " leaves"));
  } else if (reduces(kind)) {
    const auto type = static_cast<DataType>(descriptor.dtype);
    parts.push_back(absl::StrCat(name(static_cast<ReduceOp>(descriptor.op)), " of ", descriptor.bytes / size_of(type),
                                 " x ", name(type)));
  } else {
    parts.push_back(absl::StrCat(descriptor.bytes, " bytes"));
  }
  if (has_root(kind) && descriptor.root < group.size()) {
    parts.push_back(absl::StrCat("root rank ", group.members[descriptor.root]));
  }
  return absl::StrCat(name(kind), " (", absl::StrJoin(parts, ", "), ")");
}

bool aligned(const void* pointer, size_t to) { return reinterpret_cast<uintptr_t>(pointer) % to == 0; }

// Why these buffers cannot be used: their number, or a null one that has a size.
template <class Pointer, class BytesOf>
std::string why_bad(const char* what, const std::vector<Pointer>& buffers, size_t expected, BytesOf bytes_of,
                    size_t alignment = 1) {
  if (buffers.size() != expected) {
    return absl::StrFormat("%d %s buffers were given, it takes %d", buffers.size(), what, expected);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i] == nullptr && bytes_of(i) > 0) {
      return absl::StrFormat("%s buffer %d is null", what, i);
    }
    if (!aligned(buffers[i], alignment)) {
      return absl::StrFormat("%s buffer %d is not aligned to its element of %d bytes", what, i, alignment);
    }
  }
  return {};
}

}  // namespace

Descriptor descriptor_of(const Operation& operation, bool refused) {
  Descriptor result;
  if (refused) {
    return result;
  }
  result.kind = static_cast<uint8_t>(operation.kind);
  if (reduces(operation.kind)) {
    result.dtype = static_cast<uint8_t>(operation.type);
    result.op = static_cast<uint8_t>(operation.op);
  }
  if (has_root(operation.kind)) {
    result.root = operation.root;
  }
  if (operation.kind == Kind::kAllReduceCanonical) {
    result.dtype = static_cast<uint8_t>(operation.type);
    result.root = operation.run.leaves;
  }
  result.bytes = operation.bytes;
  return result;
}

std::string why_refused(const Group& group, const Operation& operation) {
  const size_t n = group.size();
  const bool is_root = operation.root == group.self;
  if (has_root(operation.kind) && operation.root >= n) {
    return absl::StrFormat("root %d is not in the group, which has %d ranks", operation.root, n);
  }
  if (reduces(operation.kind)) {
    if (std::string why = why_not(operation.type, operation.op); !why.empty()) {
      return why;
    }
  }
  const auto same = [&](size_t) { return operation.bytes; };
  const auto sent = [&](size_t i) { return operation.input_bytes[i]; };
  const auto received = [&](size_t i) { return operation.output_bytes[i]; };
  const size_t element = reduces(operation.kind) ? size_of(operation.type) : 1;
  size_t inputs = 0;
  size_t outputs = 0;
  switch (operation.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBroadcast:
      return why_bad("data", std::vector<std::byte*>{operation.data}, 1, same, element);
    case Kind::kAllToAll: {
      if (operation.input_bytes.size() != n || operation.output_bytes.size() != n) {
        return absl::StrFormat("%d input and %d output sizes were given, it takes %d of each",
                               operation.input_bytes.size(), operation.output_bytes.size(), n);
      }
      const std::string why = why_bad("input", operation.inputs, n, sent);
      return why.empty() ? why_bad("output", operation.outputs, n, received) : why;
    }
    case Kind::kAllReduceCanonical: {
      std::string why = why_refused_canonical(operation);
      if (why.empty()) {
        why =
            why_bad("partial sum", operation.inputs, operation.inputs.size(), same, size_of(sum_type(operation.type)));
      }
      return why.empty() ? why_bad("output", operation.outputs, 1, same, size_of(operation.type)) : why;
    }
    case Kind::kAllGather:
      inputs = 1;
      outputs = n;
      break;
    case Kind::kReduceScatter:
      inputs = n;
      outputs = 1;
      break;
    case Kind::kGather:
      inputs = 1;
      outputs = is_root ? n : 0;
      break;
    case Kind::kScatter:
      inputs = is_root ? n : 0;
      outputs = 1;
      break;
    default:
      return {};
  }
  const std::string why = why_bad("input", operation.inputs, inputs, same, element);
  return why.empty() ? why_bad("output", operation.outputs, outputs, same, element) : why;
}

namespace {

template <class DescriptorOf>
std::string disagreement_of(const Group& group, DescriptorOf descriptor) {
  const auto same = [&](size_t member) { return descriptor(member) == descriptor(0); };
  size_t agreeing = 1;
  while (agreeing < group.size() && same(agreeing)) {
    ++agreeing;
  }
  if (agreeing == group.size() && descriptor(0).kind != static_cast<uint8_t>(Kind::kInvalid)) {
    return {};
  }
  std::vector<std::string> sides;
  std::vector<bool> told(group.size());
  for (size_t i = 0; i < group.size(); ++i) {
    if (told[i]) {
      continue;
    }
    std::vector<size_t> side;
    for (size_t j = i; j < group.size(); ++j) {
      if (descriptor(j) == descriptor(i)) {
        side.push_back(j);
        told[j] = true;
      }
    }
    sides.push_back(absl::StrCat(rank_list(group, side), " called ", describe(group, descriptor(i))));
  }
  return absl::StrCat("the ranks do not agree: ", absl::StrJoin(sides, "; "),
                      ". All ranks of a group must make the same calls in the same order, with the same sizes and "
                      "types; does a branch depend on the rank?");
}

}  // namespace

std::string disagreement(const Group& group) {
  return disagreement_of(group, [&](size_t member) -> const Descriptor& { return group.sync.descriptor(member); });
}

std::string disagreement(const Group& group, std::span<const Descriptor> descriptors) {
  return disagreement_of(group, [&](size_t member) -> const Descriptor& { return descriptors[member]; });
}

std::string title(const Group& group, const Operation& operation) {
  return absl::StrFormat("%s #%d of group %s", name(operation.kind), group.entered, group.name);
}

std::string rank_list(const Group& group, std::span<const size_t> members) {
  return absl::StrCat(members.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(members, ", ", [&](std::string* out, size_t member) {
                        absl::StrAppend(out, group.members[member]);
                      }));
}

std::string seconds(int64_t ns) { return absl::StrFormat("%g s", static_cast<double>(ns) * 1e-9); }

}  // namespace keepstep::comm
