"""The opponent torchrun: DDP over gloo, a DCP checkpoint every 10 steps, kills of one rank in mid-step.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set, because without it torch 2.15 recovers in 0 of 3 tries: all generations
share one store, and the new generation reads the addresses of the dead one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from keepstep.bench.harness.commits import CommitReader, NewStep, first_new_step, median_step_s, redone_steps
from keepstep.bench.harness.environment import JOBS, job_environment
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import wait_for
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery.samples import Sample

CHECKPOINT_EVERY_STEPS = 10
TIMEOUT_S = 180.0


@dataclass
class TorchrunKill:
    rank: int
    pid: int
    mono: float
    after_commit_s: float
    new_step: NewStep = field(default_factory=lambda: NewStep(0, 0.0))


class Torchrun:
    def __init__(self, processes: Processes, workload: Workload, folder: Path, kills: int) -> None:
        self._processes = processes
        self._folder = folder
        self._kills = kills
        self.workload = workload
        self.commits = CommitReader(folder / "commits")
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.job: Job = self.launch()

    def launch(self) -> Job:
        return self.start_agent(["--standalone", "--nproc-per-node", str(self.workload.world_size)], "torchrun.log")

    def start_agent(self, options: list[str], log: str) -> Job:
        return self._processes.start(
            [
                *self.command([*options, "--max-restarts", str(2 * self._kills + 3)]),
                *self.script(),
            ],
            job_environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            self._folder / log,
        )

    @staticmethod
    def command(options: list[str]) -> list[str]:
        return [sys.executable, "-m", "torch.distributed.run", *options]

    def script(self) -> list[str]:
        """The training script and its options."""
        words = [str(JOBS / "torchrun_gpt.py"), *self.workload.arguments(), "--until", "1000000"]
        return [*words, "--commits", str(self.commits.folder), "--checkpoints", str(self.checkpoints)]

    def checkpoint(self) -> int:
        """The newest step that is saved."""
        try:
            return int((self.checkpoints / "latest").read_text())
        except FileNotFoundError:
            return 0

    def has_checkpoint(self, step: int) -> bool | None:
        return True if self.checkpoint() >= step else None

    def at_step(self, step: int) -> bool | None:
        self.commits.poll()
        on_step = {commit.rank for commit in self.commits.commits if commit.step == step}
        return True if len(on_step) == self.workload.world_size else None

    def kill(self, rank: int) -> TorchrunKill:
        self.commits.poll()
        newest = max((c for c in self.commits.commits if c.rank == rank), key=lambda commit: commit.mono)
        last = max(commit.mono for commit in self.commits.commits)
        now = time.monotonic()
        os.kill(newest.pid, signal.SIGKILL)
        return TorchrunKill(rank, newest.pid, now, now - last)

    def stop(self) -> None:
        self.job.stop(signal.SIGTERM)

    def recovered(self, kill: TorchrunKill) -> NewStep | None:
        self.commits.poll()
        return first_new_step(self.commits.commits, kill.mono, self.workload.world_size)


def measure_torchrun(
    processes: Processes,
    workload: Workload,
    folder: Path,
    repetitions: int,
    progress: Callable[[int, str], None],
    started: type[Torchrun] = Torchrun,
) -> tuple[list[Sample], float]:
    """The samples, and the median undisturbed step in seconds.

    One job, `repetitions` kills. The number of steps from a checkpoint to the kill is stratified over 0..9, so few
    repetitions still show the average case; the instant within the step is random.
    """
    if folder.exists():
        shutil.rmtree(folder)
    random_of = random.Random(f"torchrun {workload.seed}")
    torchrun = started(processes, workload, folder, repetitions)
    kills: list[TorchrunKill] = []
    for number in range(repetitions):
        progress(number, "waits for a checkpoint")
        offset = int((number + random_of.random()) * CHECKPOINT_EVERY_STEPS / repetitions)
        base = max(
            torchrun.checkpoint(), torchrun.commits.last_step() // CHECKPOINT_EVERY_STEPS * CHECKPOINT_EVERY_STEPS
        )
        target = base + CHECKPOINT_EVERY_STEPS
        job = torchrun.job
        wait_for(f"checkpoint {target}", job, TIMEOUT_S, partial(torchrun.has_checkpoint, target))
        step = target + offset
        wait_for(f"step {step}", job, TIMEOUT_S, partial(torchrun.at_step, step))
        step_s = median_step_s(torchrun.commits.commits, workload.world_size, [kill.mono for kill in kills])
        time.sleep(random_of.random() * (step_s or 0.0))
        kill = torchrun.kill(random_of.randrange(workload.world_size))
        progress(number, f"rank {kill.rank} killed after step {step}")
        kill.new_step = wait_for("recovery", job, TIMEOUT_S, partial(torchrun.recovered, kill))
        kills.append(kill)
    progress(repetitions, "done")
    torchrun.stop()
    commits = torchrun.commits.commits
    step_s = median_step_s(commits, workload.world_size, [kill.mono for kill in kills]) or 0.0
    samples = []
    for number, kill in enumerate(kills):
        later = kills[number + 1].mono if number + 1 < len(kills) else float("inf")
        until = kill.new_step.mono - kill.mono
        samples.append(
            Sample(
                tool="torchrun",
                number=number,
                rank=kill.rank,
                pid=kill.pid,
                kill_mono=kill.mono,
                after_commit_s=kill.after_commit_s,
                until_new_step_s=until,
                downtime_s=until - step_s,
                survivors_s=None,
                lost_steps=redone_steps([c for c in commits if c.mono < later], kill.mono),
            )
        )
    return samples, step_s
