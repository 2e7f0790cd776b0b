"""How often batches were not in memory when needed, and how long the rank waited for them."""

from __future__ import annotations

import time
from types import TracebackType

from keepstep import _engine


class DataWaits:
    """Counts over the batches of a step. Use ``with waits:`` around the making of each, on the thread that makes it.

    Only major page faults count, whose page had to be read from a disk; not those whose page was already in memory. A
    page that was read ahead in time costs nothing and is not counted.

    Attributes:
        batches: those that waited for at least one page.
        page_faults: major page faults.
        seconds: how long making these batches took.
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
        """A JSON object for the step's line in metrics.jsonl; empty if nothing waited."""
        if not self.batches:
            return ""
        counts = f'"batches": {self.batches}, "page_faults": {self.page_faults}, "seconds": {self.seconds:.6f}'
        return f'{{"data_waits_{rank}": {{{counts}}}}}'
