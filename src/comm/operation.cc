#include "comm/operation.h"

#include <cstring>
#include <iterator>

namespace keepstep::comm {

const char* name(Kind kind) {
  static constexpr const char* kNames[] = {"an invalid call",     "all_reduce", "reduce",  "broadcast",  "all_gather",
                                           "reduce_scatter",      "gather",     "scatter", "all_to_all", "barrier",
                                           "all_reduce_canonical"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "an unknown operation";
}

void zero_outputs(const Operation& operation) {
  for (size_t i = 0; i < operation.outputs.size(); ++i) {
    const size_t bytes = operation.kind == Kind::kAllToAll ? operation.output_bytes[i] : operation.bytes;
    if (bytes > 0) {
      std::memset(operation.outputs[i], 0, bytes);
    }
  }
}

}  // namespace keepstep::comm
