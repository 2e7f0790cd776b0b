"""Waits for what a job writes to files, without taking its CPU; and the progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from keepstep._console import Console
from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.processes import Job

T = TypeVar("T")
POLL_S = 0.02


def wait_for(what: str, job: Job | None, timeout_s: float, look: Callable[[], T | None]) -> T:
    """Returns the first result of `look` that is not None. Raises BenchError if the job ends first, or on a timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        running = job is None or job.running()
        found = look()
        if found is not None:
            return found
        if job is not None and not running:
            raise BenchError(
                f"the job ended with exit code {job.process.returncode} while waiting for {what}. Its last lines, "
                f"of {job.log}:\n{job.last_lines()}"
            )
        if time.monotonic() > deadline:
            last = f" The job's last lines:\n{job.last_lines()}" if job is not None else ""
            raise BenchError(f"no {what} within {timeout_s:.0f} s.{last}")
        time.sleep(POLL_S)


def wait_for_end(what: str, job: Job, timeout_s: float, progress: Callable[[], None] = lambda: None) -> None:
    """Waits for a successful end, calling `progress` now and then. Raises BenchError on failure or timeout."""

    def ended() -> bool | None:
        running = job.running()
        progress()
        return None if running else True

    wait_for(f"end of {what} (give it less to do if it needs longer)", None, timeout_s, ended)
    if job.process.returncode != 0:
        raise BenchError(f"{what} failed. Its last lines:\n{job.last_lines(80)}")


def progress_bar() -> Progress:
    """On standard error, and only if that is a terminal: standard output is for the result."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
