"""Our elastic jobs: one with two agents, the second of which joins and leaves, and one whose size a user sets."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.bench.elastic.resizes import Worlds
from keepstep.bench.harness.commits import CommitReader
from keepstep.bench.harness.environment import BenchError, free_port, job_environment, keepstep_command
from keepstep.bench.harness.processes import Job, Processes
from keepstep.report.journal import read_objects

# A policy that hardly waits: the measurement starts once it has decided.
QUICK = [
    *("--scaling-timeout", "0.2", "--min-change-interval", "0.1", "--elastic-backoff", "1"),
    *("--scale-up-snooze-time", "0.1", "--faulty-scale-down-timeout", "0.5"),
]
LEAVE_TIMEOUT_S = 150.0
SCALE_TIMEOUT_S = 60.0


class ElasticJob:
    """The interface of every tool: a job whose world can grow and shrink. A resize never ends `job`."""

    name: str
    job: Job

    def __init__(self, processes: Processes, folder: Path, script: Sequence[str]) -> None:
        """`script`: the job and its options; `--commits` is added."""
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        self.folder = folder
        self.processes = processes
        self.commits = CommitReader(folder / "commits")
        self.worlds = Worlds(self.commits)
        self.script = [*script, "--commits", str(self.commits.folder)]
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def resize(self, ranks: int) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def settled(self, ranks: int, steps: int) -> bool | None:
        """For `wait_for`: whether the job has `ranks` ranks that completed `steps` steps together."""
        return True if self.worlds.settled(ranks, steps) else None


class ScaledJob(ElasticJob):
    """One launcher with `most` ranks; a replica is a rank, and `keepstep scale` sets how many there are."""

    name = "scale"

    def __init__(self, processes: Processes, folder: Path, script: Sequence[str], most: int) -> None:
        self.most = most
        super().__init__(processes, folder, script)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def start(self) -> None:
        self.job = self.processes.start(
            [
                *(keepstep_command(), "run", "--nproc-per-node", str(self.most), "--ranks-per-replica", "1"),
                *("--min-replicas", "1", *QUICK, "--journal", str(self.run), *self.script),
            ],
            job_environment(),
            self.folder / "keepstep.log",
        )

    def resize(self, ranks: int) -> None:
        done = subprocess.run(
            [keepstep_command(), "scale", str(self.run), "--to", str(ranks)],
            env=job_environment(),
            capture_output=True,
            text=True,
            timeout=SCALE_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise BenchError(f"keepstep scale --to {ranks} failed: {done.stderr.strip()}")

    def stop(self) -> None:
        self.job.stop()
        self.worlds.poll()

    def journal(self) -> list[dict[str, Any]]:
        """The coordinator's journal, and the hydrations of newcomers on other nodes, in order of time."""
        lines: list[dict[str, Any]] = []
        for path in self.folder.glob("run*/journal*.jsonl"):
            found, _ = read_objects(path)
            lines += [line for line in found if path.parent == self.run or line["event"] == "hydrated"]
        return sorted(lines, key=lambda line: float(line["mono"]))


class AgentsJob(ScaledJob):
    """Two launchers with half the ranks each, over loopback; the second one joins, and leaves by SIGTERM."""

    name = "agents"

    def start(self) -> None:
        self._environment = job_environment() | {"KEEPSTEP_TOKEN": secrets.token_hex(32)}
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._joined = 0
        self._second: Job | None = None
        self.job = self._start(0, self.run)

    def _start(self, node: int, journal: Path) -> Job:
        return self.processes.start(
            [
                *(keepstep_command(), "run", "--nnodes", "1:2", "--node-rank", str(node), "--journal", str(journal)),
                *("--nproc-per-node", str(self.most // 2), "--rdzv-endpoint", self._endpoint, *QUICK, *self.script),
            ],
            self._environment,
            self.folder / f"{journal.name}.log",
        )

    def resize(self, ranks: int) -> None:
        if ranks == self.most:
            self._joined += 1
            self._second = self._start(1, self.folder / f"run.node1.{self._joined}")
            return
        assert self._second is not None
        second, self._second = self._second, None
        second.process.send_signal(signal.SIGTERM)
        if second.wait(LEAVE_TIMEOUT_S) != 0:
            raise BenchError(
                f"the launcher that was told to leave ended with exit code {second.process.returncode}. Its "
                f"last lines, of {second.log}:\n{second.last_lines()}"
            )

    def stop(self) -> None:
        super().stop()
        if self._second is not None:
            self._second.stop()
