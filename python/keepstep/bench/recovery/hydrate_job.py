"""The job of ``keepstep bench hydrate``: ranks on one node, or one on each of several nodes; one is replaced."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keepstep.bench.harness.commits import CommitReader, first_new_step
from keepstep.bench.harness.environment import JOBS, BenchError, job_environment, keepstep_command
from keepstep.bench.harness.keepstep_job import Membership, tell_report
from keepstep.bench.harness.namespaces import Node
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import wait_for
from keepstep.report.journal import read_objects

READY_TIMEOUT_S = 180.0
PORT = 29400
STEP_S = 0.1  # without computing: what is measured alongside the job has the CPUs to itself
TENSOR_BYTES = 4_000_000


class HydrateJob:
    """`sources` ranks, one that is killed, and a spare for it. `nodes`: one per rank; empty: all on this machine.
    `options`: further options of ``keepstep run``."""

    def __init__(
        self, processes: Processes, folder: Path, sources: int, total: int, nodes: Sequence[Node], *options: str
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.run = folder / "run"
        self.victim = sources  # the rank
        self.world = sources + 1
        self.spares = max(1, len(nodes))
        self.commits = CommitReader(folder / "commits")
        self.hydrated: list[dict[str, Any]] = []
        script = [
            *(str(JOBS / "hydrate_job.py"), "--commits", str(self.commits.folder), "--bytes", str(total)),
            *("--tensor-bytes", str(TENSOR_BYTES), "--step-s", str(STEP_S)),
        ]
        environment = job_environment() | {"KEEPSTEP_TOKEN": secrets.token_hex(32)}
        keepstep = [keepstep_command(), "run", "--spares", "1", "--journal", str(self.run), *options]
        if nodes:
            several = ["--nnodes", str(len(nodes)), "--nproc-per-node", "1", "--rdzv-endpoint", f"{nodes[0].ip}:{PORT}"]
            launchers = [
                node.command(*keepstep, *several, "--node-rank", str(number), *script)
                for number, node in enumerate(nodes)
            ]
        else:
            launchers = [[*keepstep, "--nproc-per-node", str(self.world), *script]]
        self.launchers: list[Job] = [
            processes.start(command, environment, folder / f"keepstep.node{number}.log")
            for number, command in enumerate(launchers)
        ]

    def _membership(self) -> Membership:
        """The current membership from all journals: node 0's assigns ranks; the others report their workers."""
        membership = Membership()
        lines: list[dict[str, Any]] = []
        for path in self.run.glob("journal*.jsonl"):
            found, _ = read_objects(path)
            lines += found
        lines.sort(key=lambda line: float(line["mono"]))
        for line in lines:
            membership.read(line)
        self.hydrated = [line for line in lines if line["event"] == "hydrated" and line["bytes"] > 0]
        return membership

    def _ready(self) -> Membership | None:
        for launcher in self.launchers:
            if not launcher.running():
                raise BenchError(f"a launcher ended by itself. Its last lines:\n{launcher.last_lines()}")
        found = self._membership()
        whole = found.settled and len(found.workers) == self.world and len(found.spares()) >= self.spares
        return found if whole else None

    def wait_until_ready(self) -> Membership:
        """Waits until all ranks train and there is a spare for each node."""
        return wait_for("job with a parked spare", self.launchers[0], READY_TIMEOUT_S, self._ready)

    def replace_one(self) -> dict[str, Any]:
        """Kills the victim; returns the journal's line about its successor's hydration."""
        pid = self.wait_until_ready().pid_of(self.victim)
        before = len(self.hydrated)
        self.commits.poll()
        mono = self._kill(pid)

        def stepped() -> bool | None:
            self.commits.poll()
            return True if first_new_step(self.commits.commits, mono, self.world) is not None else None

        wait_for("recovery", self.launchers[0], READY_TIMEOUT_S, stepped)
        wait_for("word of the newcomer's state", self.launchers[0], READY_TIMEOUT_S, partial(self._more_than, before))
        line = self.hydrated[-1]
        if line["rank"] != self.victim or line["sources"] != list(range(self.victim)) or line["repeated"] != 0:
            raise BenchError(f"rank {self.victim} was to be filled by all others at the first try, but: {line}")
        return line

    def _more_than(self, count: int) -> bool | None:
        self._membership()
        return True if len(self.hydrated) > count else None

    def _kill(self, pid: int) -> float:
        mono = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        tell_report(self.run, mono, pid=pid, rank=self.victim)
        return mono

    def stop(self) -> None:
        for launcher in self.launchers:
            launcher.stop()
