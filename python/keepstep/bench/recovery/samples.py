"""One measured fault, the same for every tool."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Sample:
    """A SIGKILL and what followed; all times in seconds.

    Attributes:
        kill_mono: CLOCK_MONOTONIC just before kill(2).
        after_commit_s: from the newest commit of any rank to the kill, which shows where in the step it hit.
        until_new_step_s: from the kill to the first new committed step on all ranks of the full world.
        downtime_s: until_new_step_s less one median undisturbed step of the same tool.
        survivors_s: the same as downtime_s for the surviving ranks alone.
        lost_steps: committed steps that had to be computed again.
        phases_s: keepstep only, from its journal.
    """

    tool: str
    number: int
    rank: int
    pid: int
    kill_mono: float
    after_commit_s: float
    until_new_step_s: float
    downtime_s: float
    survivors_s: float | None
    lost_steps: int
    phases_s: dict[str, float | None] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    with path.open("a", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(asdict(sample)) + "\n")


def median_phases(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The median of each phase over the samples that have it."""
    names = list(dict.fromkeys(name for sample in samples for name in sample.phases_s))
    medians: dict[str, float | None] = {}
    for name in names:
        known = [value for sample in samples if (value := sample.phases_s.get(name)) is not None]
        medians[name] = statistics.median(known) if known else None
    return medians


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Median, worst and lost steps, with which every tool's part of the result begins."""
    downtimes = [sample.downtime_s for sample in samples]
    return {
        "downtime_s": statistics.median(downtimes),
        "best_s": min(downtimes),
        "worst_s": max(downtimes),
        "until_new_step_s": statistics.median(sample.until_new_step_s for sample in samples),
        "lost_steps": sum(sample.lost_steps for sample in samples),
        "kills": len(samples),
    }
