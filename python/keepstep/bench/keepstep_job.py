"""Our side: one job under ``keepstep run``, followed through its journal and the ranks' commit files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from keepstep.bench.commits import CommitReader, NewStep, first_new_step
from keepstep.bench.environment import JOBS, job_environment, keepstep_command
from keepstep.bench.processes import Job, Processes
from keepstep.bench.workload import Workload


@dataclass
class Membership:
    """What the journal says about who is who, brought up to date line by line.

    `workers[r]` is the worker that holds rank r. `settled`: this generation has committed a step on all ranks.
    """

    workers: tuple[int, ...] = ()
    generation: int = 0
    settled: bool = False
    world_size: int = 0
    spares_wanted: int = 0

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
        elif event in ("fault_noticed", "exit_confirmed") and isinstance(worker, int):
            self._parked.discard(worker)
            self.settled = self.settled and worker not in self.workers
        elif event in ("spawned", "parked") and isinstance(worker, int) and isinstance(pid, int):
            self._pids[worker] = pid
            if event == "parked":
                self._parked.add(worker)

    def spares(self) -> set[int]:
        """Workers that are parked and hold no rank."""
        return self._parked - set(self.workers)

    def ready(self) -> bool:
        """All ranks train, and as many spares as asked for are parked."""
        return self.settled and len(self.workers) == self.world_size and len(self.spares()) >= self.spares_wanted

    def pid_of(self, rank: int) -> int:
        return self._pids[self.workers[rank]]


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


class KeepstepJob:
    """A job and its run directory; `poll` before asking."""

    def __init__(
        self,
        processes: Processes,
        workload: Workload,
        folder: Path,
        until: int,
        spares: int = 1,
        ballast_mib: int = 0,
    ) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        self.folder = folder
        self.run = folder / "run"
        self.workload = workload
        self.membership = Membership()
        self.commits = CommitReader(folder / "commits")
        self._journal_bytes = 0
        self.job: Job = processes.start(
            [
                *(keepstep_command(), "run", "--nproc-per-node", str(workload.world_size)),
                *("--spares", str(spares), "--journal", str(self.run)),
                *(str(JOBS / "keepstep_gpt.py"), *workload.arguments(), "--until", str(until)),
                *("--commits", str(self.commits.folder), "--ballast-mib", str(ballast_mib)),
            ],
            job_environment(),
            folder / "keepstep.log",
        )

    def poll(self) -> None:
        """Reads what is new in journal and commit files."""
        self.commits.poll()
        try:
            with (self.run / "journal.jsonl").open("rb") as file:
                file.seek(self._journal_bytes)
                data = file.read()
        except FileNotFoundError:
            return
        data = data[: data.rfind(b"\n") + 1]
        self._journal_bytes += len(data)
        for line in data.splitlines():
            self.membership.read(json.loads(line))

    def ready(self) -> bool | None:
        self.poll()
        return True if self.membership.ready() else None

    def kill(self, rank: int) -> tuple[int, float, float]:
        """SIGKILL from outside. Returns pid, CLOCK_MONOTONIC at the kill, seconds since the newest commit."""
        self.poll()
        pid = self.membership.pid_of(rank)
        last = max((commit.mono for commit in self.commits.commits), default=0.0)
        mono = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with (self.run / "faults.jsonl").open("a") as file:
            file.write(json.dumps({"mono": mono, "pid": pid, "rank": rank}) + "\n")
        return pid, mono, mono - last

    def new_step(self, kill_mono: float) -> NewStep | None:
        self.poll()
        return first_new_step(self.commits.commits, kill_mono, self.workload.world_size)


def losses(run: Path) -> dict[int, float]:
    """The loss of every committed step of a run directory, as it was written: equal floats are equal bits."""
    found: dict[int, float] = {}
    try:
        text = (run / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return found
    for line in text.splitlines():
        try:
            metrics = json.loads(line)
        except ValueError:
            continue  # a line the stop cut off
        if isinstance(metrics.get("loss"), float):
            found[int(metrics["step"])] = metrics["loss"]
    return found
