"""Runs one job to its end, on one node or on several nodes of this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.bench.harness.environment import free_port
from keepstep.bench.harness.processes import Job, Processes

OTHERS_END_S = 30.0  # time for the other nodes to end after node 0
LOOK_S = 0.1


JOB = "{job}"  # in an argument of the script: `own_folder`


def own_folder(folder: Path) -> Path:
    """Where the script of the job in `folder` may keep what no other job must see, such as its own checkpoints."""
    return (folder / "own").resolve()


@dataclass(frozen=True)
class Launch:
    """How each job is started. ``options``: those of `keepstep run`, except for journal and faults."""

    command: str
    options: tuple[str, ...]
    script: tuple[str, ...]
    nodes: int = 1
    spare_nodes: int = 0
    until: int | None = None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Ran:
    """A job that ended. ``exit_code``: node 0's; None if it did not end in time and was killed."""

    folder: Path
    exit_code: int | None
    seconds: float
    outputs: list[Path] = field(default_factory=list)
    command: str = ""

    @property
    def journal(self) -> Path:
        return self.folder / "run"


def _environment(launch: Launch, folder: Path) -> dict[str, str]:
    values = dict(os.environ) | dict(launch.environment)
    values["KEEPSTEP_PYTHON"] = sys.executable
    values["KEEPSTEP_WITNESS"] = str((folder / "witness").resolve())
    values.pop("KEEPSTEP_WITNESS_UNTIL", None)
    if launch.until is not None:
        values["KEEPSTEP_WITNESS_UNTIL"] = str(launch.until)
    if launch.nodes > 1:
        values.setdefault("OMP_NUM_THREADS", "1")  # like several ranks on one node: these nodes share a machine
        values["KEEPSTEP_TOKEN"] = secrets.token_hex(32)
    return values


class Running:
    """A job's launchers. ``jobs[0]``: node 0's, which ends when the job does."""

    def __init__(
        self, processes: Processes, launch: Launch, folder: Path, faults: Sequence[str], extra: Sequence[str]
    ) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self._processes, self._launch = processes, launch
        self._environment = _environment(launch, folder)
        self._options = [*launch.options, *extra, *(part for fault in faults for part in ("--inject", fault))]
        self._endpoint = f"127.0.0.1:{free_port()}" if launch.nodes > 1 else ""
        self._started = 0
        self.outputs: list[Path] = []
        self.jobs: dict[int, Job] = {}
        own_folder(folder).mkdir(parents=True)
        for node in range(launch.nodes + launch.spare_nodes):
            self.start(node)

    def start(self, node: int) -> None:
        """Starts the launcher of `node`, or restarts a lost one, whose journal then goes to a separate folder."""
        run = self.folder / ("run" if node not in self.jobs else f"run.{self._started}")
        of_nodes = []
        if self._launch.nodes > 1:
            of_nodes = ["--node-rank", str(node), "--rdzv-endpoint", self._endpoint]
        script = [part.replace(JOB, str(own_folder(self.folder))) for part in self._launch.script]
        command = [self._launch.command, "run", *of_nodes, "--journal", str(run), *self._options, *script]
        output = self.folder / f"output.node{node}.{self._started}.txt"
        self._started += 1
        self.outputs.append(output)
        self.jobs[node] = self._processes.start(command, self._environment, output)

    @property
    def main(self) -> Job:
        return self.jobs[0]

    def finish(self, timeout_s: float, look: Callable[[Running], None] | None = None) -> Ran:
        """Waits for the end, calling `look` now and then. Afterwards no process is left."""
        code: int | None = None
        try:
            while time.monotonic() - self.began < timeout_s:
                try:
                    code = self.main.wait(LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    if look is not None:
                        look(self)
            seconds = time.monotonic() - self.began
            for node, job in self.jobs.items():
                if code is not None and node != 0:
                    try:
                        job.wait(OTHERS_END_S)
                    except subprocess.TimeoutExpired:
                        code = None
        finally:
            for job in self.jobs.values():
                if job.running():
                    job.kill()
        return Ran(self.folder, code, seconds, self.outputs, " ".join(self.main.command))


def run_job(
    processes: Processes,
    launch: Launch,
    folder: Path,
    *,
    faults: Sequence[str] = (),
    extra: Sequence[str] = (),
    timeout_s: float = 600.0,
    look: Callable[[Running], None] | None = None,
) -> Ran:
    """Runs one job in `folder`, which must not exist: ``run/`` (journal), ``witness/``, ``own/`` and
    ``output.*.txt``."""
    return Running(processes, launch, folder, faults, extra).finish(timeout_s, look)
