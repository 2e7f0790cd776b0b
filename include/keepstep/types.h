// Element types of tensors, and reductions of collectives. The names are torch's.
#pragma once

#include <cstdint>

namespace keepstep {

enum class DataType : uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt8, kUint8, kInt16, kInt32, kInt64, kBool };
enum class ReduceOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

}  // namespace keepstep
