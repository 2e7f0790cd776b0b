"""Our side: one job under ``keepstep run``, followed through its journal and the ranks' commit files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.bench.harness.appended import AppendedLines
from keepstep.bench.harness.commits import CommitReader, NewStep, first_new_step
from keepstep.bench.harness.environment import JOBS, job_environment, keepstep_command
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.workload import Workload


@dataclass
class Membership:
    """Which worker holds which rank, according to the journal, updated line by line.

    `workers[r]` is the worker that holds rank r. `settled`: this generation has committed a step on all ranks. `nodes`:
    those that have ranks, in rank order; `on_spare_nodes`: the number of workers parked on other nodes. The code that
    starts several nodes sets both.
    """

    workers: tuple[int, ...] = ()
    generation: int = 0
    settled: bool = False
    world_size: int = 0
    spares_wanted: int = 0
    nodes: list[int] = field(default_factory=list)
    on_spare_nodes: int = 0

    def __post_init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._parked: set[int] = set()

    def read(self, line: dict[str, object]) -> None:
        event, worker, pid = line.get("event"), line.get("worker"), line.get("pid")
        if event == "job_started":
            self.world_size = _integer(line.get("world_size"))
            self.spares_wanted = _integer(line.get("spares"))
        elif event == "generation_prepared":
            workers = line.get("workers")
            self.workers = tuple(workers) if isinstance(workers, list) else ()
            self.generation = _integer(line.get("generation"))
            self.settled = False
        elif event == "first_commit" and line.get("generation") == self.generation:
            self.settled = True
        elif event == "fault_detected" and line.get("kind") == "node":
            gone = line.get("workers")
            self._parked -= set(gone) if isinstance(gone, list) else set()
            self.settled = self.settled and not line.get("ranks")
        elif event == "node_replaced":
            self.nodes[self.nodes.index(_integer(line.get("lost_node")))] = _integer(line.get("by_node"))
        elif event in ("fault_detected", "exit_confirmed") and isinstance(worker, int):
            self._parked.discard(worker)
            self.settled = self.settled and worker not in self.workers
        elif event in ("spawned", "parked") and isinstance(worker, int) and isinstance(pid, int):
            self._pids[worker] = pid
            if event == "parked":
                self._parked.add(worker)

    def spares(self) -> set[int]:
        """Parked workers without a rank."""
        return self._parked - set(self.workers)

    def ready(self) -> bool:
        """Whether all ranks train and as many spares as requested have parked."""
        wanted = self.spares_wanted + self.on_spare_nodes
        return self.settled and len(self.workers) == self.world_size and len(self.spares()) >= wanted

    def pid_of(self, rank: int) -> int:
        return self._pids[self.workers[rank]]


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


@dataclass(frozen=True)
class Kill:
    """A SIGKILL from outside: killed `ranks` ranks from `rank` on; `pid` was the process or the launcher.

    `mono`: CLOCK_MONOTONIC just before it; `after_commit_s`: time since the newest commit of any rank; in seconds.
    """

    what: str
    rank: int
    ranks: int
    pid: int
    mono: float
    after_commit_s: float


class KeepstepJob:
    """A job on one node and its run directory. Call `poll` before queries."""

    def __init__(
        self,
        processes: Processes,
        workload: Workload,
        folder: Path,
        until: int,
        spares: int = 1,
        ballast_mib: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        self.folder = folder
        self.run = folder / "run"
        self.processes = processes
        self.workload = workload
        self.membership = Membership()
        self.commits = CommitReader(folder / "commits")
        self._journal = AppendedLines(self.run / "journal.jsonl")
        script = [*self.script(until), "--ballast-mib", str(ballast_mib)] if ballast_mib else self.script(until)
        self.job: Job = self.launch(spares, [*script, *options], job_environment())

    def script(self, until: int) -> list[str]:
        """The training script and its options; `until`: its last step."""
        words = [str(JOBS / "keepstep_gpt.py"), *self.workload.arguments(), "--until", str(until)]
        return [*words, "--commits", str(self.commits.folder)]

    def launch(self, spares: int, script: Sequence[str], environment: Mapping[str, str]) -> Job:
        """Starts everything. Returns the launcher whose end is the job's end."""
        return self.processes.start(
            [
                *(keepstep_command(), "run", "--nproc-per-node", str(self.workload.world_size)),
                *("--spares", str(spares), "--journal", str(self.run), *script),
            ],
            environment,
            self.folder / "keepstep.log",
        )

    def poll(self) -> None:
        """Reads new lines of the journal and the commit files."""
        self.commits.poll()
        for line in self._journal.poll():
            self.membership.read(json.loads(line))

    def ready(self) -> bool | None:
        self.poll()
        return True if self.membership.ready() else None

    def choose(self, random_of: random.Random) -> int:
        """The next victim, for `kill`."""
        return random_of.randrange(self.workload.world_size)

    def kill(self, victim: int) -> Kill:
        self.poll()
        pid = self.membership.pid_of(victim)
        mono = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        tell_report(self.run, mono, pid=pid, rank=victim)
        return Kill(f"rank {victim}", victim, 1, pid, mono, self.after_commit_s(mono))

    def after_commit_s(self, mono: float) -> float:
        return mono - max((commit.mono for commit in self.commits.commits if commit.mono <= mono), default=0.0)

    def refill(self) -> None:
        """After a recovery: prepares the job for the next kill. On one node the job does that itself."""

    def stop(self) -> None:
        self.job.stop()

    def new_step(self, kill_mono: float) -> NewStep | None:
        self.poll()
        return first_new_step(self.commits.commits, kill_mono, self.workload.world_size)


def tell_report(run: Path, mono: float, **killed: int) -> None:
    """Records a kill from outside, which the job's journal cannot know, for `keepstep report`."""
    with (run / "faults.jsonl").open("a") as file:
        file.write(json.dumps({"mono": mono} | killed) + "\n")


def losses(run: Path) -> dict[int, float]:
    """The loss of every committed step of a run directory, exactly as written: equal floats mean equal bits."""
    found: dict[int, float] = {}
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return found
    for line in text.splitlines():
        try:
            metrics = json.loads(line)
        except ValueError:
            continue  # truncated when the job stopped
        if isinstance(metrics.get("loss"), float):
            found[int(metrics["step"])] = metrics["loss"]
    return found
