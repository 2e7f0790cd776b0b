"""Ranks whose batches were not in memory when they were needed: the ``data_waits_RANK`` of the steps' metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keepstep.report.journal import as_integer, as_seconds

PREFIX = "data_waits_"


@dataclass(frozen=True)
class DataWaits:
    """One rank's waits for data over all committed steps.

    Attributes:
        steps: number of steps in which it waited at least once.
        batches: number of batches that were not ready in time.
        page_faults: number of waits for pages from a disk.
        seconds: time that making these batches took.
    """

    rank: int
    steps: int
    batches: int
    page_faults: int
    seconds: float


def data_waits_of(metrics: Iterable[Mapping[str, Any]]) -> list[DataWaits]:
    """Sorted by rank. If a restart committed a step again, the later line is used."""
    steps: dict[tuple[int, int], Mapping[str, Any]] = {}
    for found in metrics:
        step = as_integer(found.get("step"))
        for name, value in found.items():
            of = name.removeprefix(PREFIX)
            if step is not None and name.startswith(PREFIX) and of.isdecimal() and isinstance(value, dict):
                steps[step, int(of)] = value
    waits = []
    for rank in sorted({rank for _, rank in steps}):
        mine = [value for (_, holder), value in steps.items() if holder == rank]
        batches, faults = (
            sum(as_integer(value.get(name)) or 0 for value in mine) for name in ("batches", "page_faults")
        )
        seconds = sum(as_seconds(value.get("seconds")) or 0.0 for value in mine)
        waits.append(DataWaits(rank, len(mine), batches, faults, seconds))
    return waits
