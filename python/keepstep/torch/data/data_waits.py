"""Batches that were not in memory when they were needed: how often, and how long the rank waited for them."""

from __future__ import annotations

import time
from types import TracebackType

from keepstep import _engine


class DataWaits:
    """Counts over the batches of a step; ``with waits:`` around the making of each, on the thread that makes it.

    A page fault that was waited for is one that the kernel calls major: the page had to come from a disk. A fault whose
    page was in memory already is none. What a read-ahead brought in time costs nothing and counts nothing.

    Attributes:
        batches: that were not ready in time: at least one page was waited for.
        page_faults: that were waited for.
        seconds: that making these batches took.
    """

    __slots__ = ("_before", "_began", "batches", "page_faults", "seconds")

    def __init__(self) -> None:
        self.batches = 0
        self.page_faults = 0
        self.seconds = 0.0
        self._before = 0
        self._began = 0.0

    def __enter__(self) -> None:
        self._before = _engine.page_faults()
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faults = _engine.page_faults() - self._before
        if faults:
            _engine.read_ahead_wake()
            self.batches += 1
            self.page_faults += faults
            self.seconds += time.perf_counter() - self._began

    def line(self, rank: int) -> str:
        """For the step's line in metrics.jsonl: a JSON object; empty if nothing was waited for."""
        if not self.batches:
            return ""
        counts = f'"batches": {self.batches}, "page_faults": {self.page_faults}, "seconds": {self.seconds:.6f}'
        return f'{{"data_waits_{rank}": {{{counts}}}}}'
