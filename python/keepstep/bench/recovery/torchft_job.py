"""The opponent torchft (torchft-nightly), in a separate environment: it is not a dependency of keepstep.

    python -m keepstep.bench.recovery.torchft_job      installs it below ~/.cache/keepstep-bench

Replica groups of one process each, a lighthouse, and a supervisor (this process) that restarts a dead replica at once.
Timeouts are as short as torchft stays reliable with: heartbeat 1 s, join 1 s, gloo 2 s, manager 10 s (defaults: 5, 60,
60, 60), quorum tick 100 ms, at least 2 replicas, no state sync at the start.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from keepstep.bench.harness.commits import CommitReader, NewStep, first_new_step, median_step_s, redone_steps
from keepstep.bench.harness.environment import JOBS, job_environment
from keepstep.bench.harness.peer_environment import Peer
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import wait_for
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery.samples import Sample

TORCHFT = Peer("torchft", "torchft-nightly", "2026.10.26", "keepstep.bench.recovery.torchft_job")
TUNED = ["--heartbeat-s", "1", "--join-s", "1", "--gloo-s", "2", "--manager-s", "10"]
TIMEOUT_S = 120.0
SETTLING_STEPS = 8


class _Torchft:
    def __init__(self, processes: Processes, workload: Workload, folder: Path) -> None:
        self._processes = processes
        self.workload = workload
        self.folder = folder
        self.commits = CommitReader(folder / "commits")
        self._script = [TORCHFT.python(), str(JOBS / "torchft_gpt.py"), *TUNED]
        self.lighthouse = processes.start(
            [*self._script, "--lighthouse-here"], job_environment(), folder / "lighthouse.log"
        )
        self._address = wait_for("lighthouse", self.lighthouse, 60.0, self._look_for_address)
        self.replicas: list[Job] = [self._replica(number) for number in range(workload.world_size)]

    def _look_for_address(self) -> str | None:
        lines = (self.folder / "lighthouse.log").read_text(errors="replace").splitlines()
        return next((line for line in lines if line.startswith("http://127.0.0.1:")), None)

    def _replica(self, number: int) -> Job:
        return self._processes.start(
            [
                *(*self._script, *self.workload.arguments(), "--until", "1000000"),
                *("--commits", str(self.commits.folder), "--lighthouse", self._address),
                *("--replica", str(number), "--replicas", str(self.workload.world_size)),
            ],
            job_environment(),
            self.folder / f"replica-{number}.log",
        )

    def supervise(self) -> None:
        """Restarts replicas that have died."""
        for number, job in enumerate(self.replicas):
            if not job.running():
                self.replicas[number] = self._replica(number)

    def settled_after(self, mono: float) -> bool | None:
        """Whether every replica has made some steps of the full world since `mono`."""
        self.supervise()
        self.commits.poll()
        full = [c for c in self.commits.commits if c.mono > mono and c.ranks == self.workload.world_size]
        enough = [sum(c.rank == rank for c in full) >= SETTLING_STEPS for rank in range(self.workload.world_size)]
        return True if all(enough) else None

    def recovered(self, mono: float) -> NewStep | None:
        self.supervise()
        self.commits.poll()
        return first_new_step(self.commits.commits, mono, self.workload.world_size)

    def stop(self) -> None:
        for job in [*self.replicas, self.lighthouse]:
            if job.running():
                job.process.kill()
        for job in [*self.replicas, self.lighthouse]:
            job.process.wait()


def measure_torchft(
    processes: Processes,
    workload: Workload,
    folder: Path,
    repetitions: int,
    progress: Callable[[int, str], None],
) -> tuple[list[Sample], float]:
    """The samples (`survivors_s`: the others alone), and the median undisturbed step in seconds."""
    if folder.exists():
        shutil.rmtree(folder)
    random_of = random.Random(f"torchft {workload.seed}")
    torchft = _Torchft(processes, workload, folder)
    samples: list[Sample] = []
    kill_mono, step_s = time.monotonic(), 0.0
    for number in range(repetitions):
        progress(number, "waits for the full world")
        wait_for("the full world", torchft.lighthouse, TIMEOUT_S, partial(torchft.settled_after, kill_mono))
        # A replica's generation is its pid, which does not identify a membership: see _step_s.
        step_s = step_s or _step_s(torchft.commits, workload.world_size)
        time.sleep(random_of.random() * step_s)
        rank = random_of.randrange(workload.world_size)
        torchft.commits.poll()
        last = max(commit.mono for commit in torchft.commits.commits)
        pid = torchft.replicas[rank].process.pid
        kill_mono = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        progress(number, f"replica {rank} killed")
        new = wait_for("recovery", torchft.lighthouse, TIMEOUT_S, partial(torchft.recovered, kill_mono))
        survivors = first_new_step(torchft.commits.commits, kill_mono, workload.world_size - 1)
        until = new.mono - kill_mono
        samples.append(
            Sample(
                tool="torchft",
                number=number,
                rank=rank,
                pid=pid,
                kill_mono=kill_mono,
                after_commit_s=kill_mono - last,
                until_new_step_s=until,
                downtime_s=until - step_s,
                survivors_s=survivors.mono - kill_mono - step_s if survivors is not None else None,
                lost_steps=redone_steps(torchft.commits.commits, kill_mono),
            )
        )
    progress(repetitions, "done")
    torchft.stop()
    return samples, step_s


def _step_s(commits: CommitReader, world_size: int) -> float:
    """Median step of the full world; a replica's generation, its pid, says nothing about the membership."""
    from dataclasses import replace

    full = [replace(commit, generation=0) for commit in commits.commits if commit.ranks == world_size]
    return median_step_s(full, world_size) or 0.0


if __name__ == "__main__":
    TORCHFT.install()
