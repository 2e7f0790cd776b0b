// Short CPU time slices, for threads that move bytes between other threads or processes.
//
// The kernel lets a thread run for a slice (some milliseconds) before the next one gets its turn, and among the ready
// threads it picks the one whose slice would end first. So a thread with short slices that becomes ready, because bytes
// arrived or there is room again, runs soon even when all CPUs are busy, yet gets no more CPU time than any other
// (EEVDF; Stoica and Abdel-Wahab, 1995). Works on Linux 6.12 and later; has no effect elsewhere.
#pragma once

namespace keepstep {

// Gives the calling thread short slices, if it has the default scheduling policy.
void take_short_turns();

}  // namespace keepstep
