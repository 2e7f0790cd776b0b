// Puts the Slurm job that this process runs in back into the queue.
#pragma once

#include <string>

#include "base/status.h"

namespace keepstep::cli {

// Calls `scontrol requeue`, which ends the job's processes, so it may not return. FAILED_PRECONDITION: Slurm is already
// ending the job (cancelled, out of time, preempted), and decides itself whether to requeue it; other errors:
// scontrol's message.
Status requeue_slurm_job(const std::string& job);

}  // namespace keepstep::cli
