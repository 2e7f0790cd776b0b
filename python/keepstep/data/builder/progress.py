"""Shows the progress of a build on standard error: a bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

EVERY_S = 10.0


def in_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def in_time(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, done: int) -> None:
        """`done`: bytes so far, including those that already existed."""


class Lines(Silent):
    """Plain lines, at most one every EVERY_S seconds. `clock` and `out` are for tests."""

    def __init__(self, what: str, total: int, already: int, clock: Callable[[], float] = time.monotonic,
                 out: TextIO | None = None) -> None:  # fmt: skip
        self._what, self._total, self._already = what, total, already
        self._clock, self._out = clock, out or sys.stderr
        self._began = self._said = clock()

    def update(self, done: int) -> None:
        now = self._clock()
        if now - self._said < EVERY_S:
            return
        self._said = now
        rate = (done - self._already) / (now - self._began)
        left = f", {in_time((self._total - done) / rate)} left" if rate > 0 else ""
        print(
            f"{self._what}: {100 * done / max(1, self._total):.0f}%, {in_bytes(done)} of {in_bytes(self._total)}, "
            f"{in_bytes(rate)}/s{left}",
            file=self._out, flush=True,
        )  # fmt: skip


class Bar(Silent):
    """A bar with the rate and the time left."""

    def __init__(self, what: str, total: int, already: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        from keepstep._console import Console

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), DownloadColumn(),
            TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(what, total=total, completed=already)

    def __enter__(self) -> Silent:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int) -> None:
        self._progress.update(self._task, completed=done)


def progress(what: str, total: int, already: int = 0, quiet: bool = False, command: str = "data") -> Silent:
    """`total` and `already` in bytes; `command` of keepstep."""
    if quiet:
        return Silent()
    return Bar(what, total, already) if sys.stderr.isatty() else Lines(f"keepstep {command}: {what}", total, already)
