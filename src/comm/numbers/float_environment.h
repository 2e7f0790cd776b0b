// The calling thread's floating-point mode during sums.
#pragma once

#include <cfenv>

namespace keepstep::comm {

// Rounds to nearest and keeps denormals, whatever the calling thread's settings (torch.set_flush_denormal): all ranks
// must compute the same bits.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&saved_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace keepstep::comm
