#include "base/short_turns.h"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace keepstep {
namespace {

constexpr uint64_t kTurnNs = 300'000;  // the kernel's default is 2.8 ms or more

}  // namespace

void take_short_turns() {
  sched_attr attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 &&
      attributes.sched_policy == SCHED_NORMAL) {
    attributes.sched_runtime = kTurnNs;
    (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
}

}  // namespace keepstep
