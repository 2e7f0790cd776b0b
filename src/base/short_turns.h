// Short turns on a CPU, for threads that move bytes between others.
//
// The kernel lets a thread run for a slice (some milliseconds) before the next one has its turn, and of those that are
// ready it takes the one whose slice would end first. A thread with short slices that becomes ready, because bytes came
// or there is room again, so runs soon where all CPUs are busy, and gets no more of them than any other (EEVDF; Stoica
// and Abdel-Wahab, 1995). Linux 6.12 and later; elsewhere nothing changes.
#pragma once

namespace keepstep {

// Of the calling thread, if it has the scheduler's usual policy.
void take_short_turns();

}  // namespace keepstep
