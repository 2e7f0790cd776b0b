"""Measures our recoveries: kills from outside at seeded random instants, and compares all losses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keepstep.bench.harness.commits import first_new_step, median_step_s, redone_steps
from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.keepstep_job import KeepstepJob, Kill, losses
from keepstep.bench.harness.keepstep_nodes import KeepstepNodes
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery.samples import Sample
from keepstep.report.analysis import Analysis, analyse

READY_TIMEOUT_S = 120.0
RECOVERY_TIMEOUT_S = 120.0
CALIBRATION_STEPS = 12

Progress = Callable[[int, str], None]

# What is killed, and the job in which it is killed.
FAULTS: dict[str, type[KeepstepJob]] = {"rank": KeepstepJob, "node": KeepstepNodes}


@dataclass
class Disturbed:
    """A job that was killed many times. `last_step`: the last step with a known loss."""

    samples: list[Sample]
    run: Path
    last_step: int


def undisturbed(
    processes: Processes, workload: Workload, folder: Path, until: int, kind: type[KeepstepJob]
) -> tuple[Path, float]:
    """Trains `until` steps undisturbed. Returns the run directory and the median step in seconds.

    `kind`: that of the job that is disturbed, so its steps are as long.
    """
    job = kind(processes, workload, folder, until, spares=0)
    code = wait_for("the end of the undisturbed run", None, 60 + 10.0 * until, lambda: job.job.process.poll())
    job.stop()
    job.poll()
    step_s = median_step_s(job.commits.commits, workload.world_size)
    if code != 0 or step_s is None:
        raise BenchError(f"the undisturbed run ended with exit code {code}:\n{job.job.last_lines()}")
    return job.run, step_s


def calibrate(
    processes: Processes, workload: Workload, folder: Path, kind: type[KeepstepJob]
) -> tuple[Workload, float]:
    """Returns the workload with steps of at least 200 ms on this machine, and the median step in seconds."""
    for attempt in range(3):
        _, step_s = undisturbed(processes, workload, folder / f"calibration-{attempt}", CALIBRATION_STEPS, kind)
        longer = workload.longer(step_s)
        if longer == workload:
            return workload, step_s
        workload = longer
    raise BenchError(f"steps stay below 200 ms even with a global batch of {workload.global_batch}")


def disturb(
    processes: Processes,
    workload: Workload,
    folder: Path,
    kills: int,
    step_s: float,
    progress: Progress,
    kind: type[KeepstepJob],
    ballast_mib: int = 0,
) -> Disturbed:
    """Kills a random rank, or node, `kills` times, each time once the job is whole again and spares are parked.

    The instant is uniform over one step; `step_s` is its median length in seconds.
    """
    random_of = random.Random(f"keepstep {workload.seed} {ballast_mib}")
    job = kind(processes, workload, folder, until=1_000_000, ballast_mib=ballast_mib)
    samples: list[Sample] = []
    done: list[Kill] = []
    for number in range(kills):
        progress(number, "waits for a spare")
        wait_for("job with a parked spare", job.job, READY_TIMEOUT_S, job.ready)
        victim = job.choose(random_of)
        time.sleep((1 + random_of.random()) * step_s)
        if not job.ready():
            raise BenchError(f"the job failed by itself before kill {number}; see {job.run}/journal.jsonl")
        kill = job.kill(victim)
        progress(number, f"{kill.what} killed")
        new = wait_for("recovery", job.job, RECOVERY_TIMEOUT_S, partial(job.new_step, kill.mono))
        until = new.mono - kill.mono
        samples.append(
            Sample("keepstep", number, kill.rank, kill.pid, kill.mono, kill.after_commit_s, until, 0.0, None, 0)
        )
        done.append(kill)
        job.refill()
    progress(kills, "done")
    wait_for("step after the last recovery", job.job, READY_TIMEOUT_S, job.ready)
    time.sleep(2 * step_s)
    job.stop()
    job.poll()
    _complete(samples, done, job, step_s, analyse(job.run))
    return Disturbed(samples, job.run, max(losses(job.run), default=0))


def _complete(samples: list[Sample], kills: list[Kill], job: KeepstepJob, step_s: float, analysis: Analysis) -> None:
    """Adds what only the whole run shows: phases, lost steps, bytes."""
    by_kill = {fault.happened_mono: recovery for recovery in analysis.recoveries for fault in recovery.faults}
    for sample, kill, following in zip(samples, kills, [*samples[1:], None], strict=True):
        end = following.kill_mono if following is not None else float("inf")
        until_then = [commit for commit in job.commits.commits if commit.mono < end]
        sample.downtime_s = sample.until_new_step_s - step_s
        survivors = first_new_step(until_then, sample.kill_mono, job.workload.world_size - kill.ranks)
        if survivors is not None:
            sample.survivors_s = survivors.mono - sample.kill_mono - step_s
        recovery = by_kill.get(kill.mono)
        if recovery is None:
            raise BenchError(f"the journal {job.run} knows no recovery from the kill of {kill.what}, pid {kill.pid}")
        sample.phases_s = recovery.phases_s()
        sample.lost_steps = max(recovery.lost_steps, redone_steps(until_then, sample.kill_mono))
        sample.extra = {
            "killed": kill.what,
            "verdict": recovery.verdict,
            "replaced_by": recovery.replaced_by,
            "bytes_moved": recovery.bytes_moved,
            "detected_by": [fault.detected_by for fault in recovery.faults],
        }


def bitwise_equal(disturbed: Path, peaceful: Path, last_step: int) -> bool:
    """Whether both runs have a loss for every step from 1 to `last_step`, with the same bits."""
    ours, theirs = losses(disturbed), losses(peaceful)
    return last_step > 0 and all(
        step in ours and step in theirs and ours[step].hex() == theirs[step].hex() for step in range(1, last_step + 1)
    )
