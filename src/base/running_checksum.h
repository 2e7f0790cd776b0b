// 64-bit XXH3 over data that arrive in pieces: the same value as checksum() of all of them at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/xxh3.h"

namespace keepstep {

class RunningChecksum {
 public:
  RunningChecksum() : state_(XXH3_createState()) {
    KEEPSTEP_CHECK(state_ != nullptr, "no memory for a checksum");
    XXH3_64bits_reset(state_.get());
  }

  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace keepstep
