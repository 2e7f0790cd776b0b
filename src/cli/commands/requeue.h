// Puts the Slurm job that we run in back into the queue.
#pragma once

#include <string>

#include "base/status.h"

namespace keepstep::cli {

// Calls `scontrol requeue`, which ends the job's processes, so it may not return. FAILED_PRECONDITION: Slurm ends the
// job already (cancelled, out of time, preempted: then Slurm itself requeues it, or does not); others: what scontrol
// said.
Status requeue_slurm_job(const std::string& job);

}  // namespace keepstep::cli
