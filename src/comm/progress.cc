#include "comm/progress.h"

#include "comm/operation.h"

namespace keepstep::comm {

const char* collective_name(uint32_t kind) {
  return kind > static_cast<uint32_t>(Kind::kAllReduceCanonical) ? "" : name(static_cast<Kind>(kind));
}

}  // namespace keepstep::comm
