"""Starts jobs so that none of their processes outlives the benchmark, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

PR_SET_CHILD_SUBREAPER = 36
STOP_SECONDS = 15.0


def _parents() -> dict[int, int]:
    """The parent of every process."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_bytes()
            except OSError:
                continue
            # The name, in parentheses, may contain anything.
            parents[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return parents


def descendants(root: int) -> list[int]:
    """All processes below `root`, by pid."""
    parents = _parents()
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return sorted(found - {root})
        found |= more


class Job:
    """A command in its own session; its output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.command = list(command)
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def stop(self, first: signal.Signals = signal.SIGINT) -> int:
        """Asks the job to end, then more firmly, then kills it and everything below it. Returns the exit code."""
        for number in (first, signal.SIGTERM):
            if self.running():
                self.process.send_signal(number)
                try:
                    return self.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        if self.running():
            for pid in [*descendants(self.process.pid), self.process.pid]:
                _kill(pid)
        return self.process.wait()

    def kill(self) -> float:
        """SIGKILLs the job and everything below it at once. Returns CLOCK_MONOTONIC, in seconds, just before."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        mono = time.monotonic()
        for pid in pids:
            _kill(pid)
        self.process.wait()
        return mono

    def last_lines(self, count: int = 25) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        except FileNotFoundError:
            return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Processes:
    """Owns the jobs of a benchmark: ``with Processes() as processes``. On exit it ends whatever is still alive.

    Orphans of a job become children of this process (a subreaper), so none can escape.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def __enter__(self) -> Processes:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._on_sigterm = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Job:
        job = Job(command, environment, log)
        self._jobs.append(job)
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # From here on nothing is left behind, no matter how often Ctrl-C is pressed.
        on_sigint = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for job in self._jobs:
            if job.running():
                job.stop()
        deadline = time.monotonic() + STOP_SECONDS
        while left := descendants(os.getpid()):
            for pid in left:
                _kill(pid)
            _reap()
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {left} do not end")
            time.sleep(0.02)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, on_sigint)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
