"""Steps per second of an elastic job as its world grows and shrinks, compared with linear scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keepstep.bench.elastic.keepstep_elastic import ScaledJob
from keepstep.bench.elastic.resizes import steps_per_s
from keepstep.bench.harness.environment import JOBS, BenchError
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for

SETTLE_TIMEOUT_S = 300.0
MICRO_BATCHES, MICRO_BATCH_MS = 64, 50.0


def throttled(processes: Processes, folder: Path, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Micro-batches that sleep: the cost of keepstep itself, independent of the CPUs."""
    script = [str(JOBS / "throttled_job.py"), "--micro-batches", str(MICRO_BATCHES)]
    script += ["--milliseconds", str(MICRO_BATCH_MS)]
    found = _measure(processes, folder, script, (1, 2, 4, 8), MICRO_BATCHES * MICRO_BATCH_MS / 1e3, seconds, progress)
    return {"micro_batches": MICRO_BATCHES, "micro_batch_ms": MICRO_BATCH_MS} | found


def computing(
    processes: Processes, folder: Path, script: Sequence[str], seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """The model on 1 and 2 ranks, one computing thread each."""
    return _measure(processes, folder, script, (1, 2), 0.5, seconds, progress)


def _measure(
    processes: Processes,
    folder: Path,
    script: Sequence[str],
    worlds: Sequence[int],
    alone_s: float,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """One job that grows and shrinks again, so other load on the machine affects all sizes.

    `alone_s`: about the time of a step on one rank. Each size runs enough steps to fill `seconds`, at least six.
    """
    job = ScaledJob(processes, folder, script, max(worlds))
    wait_for("first steps", job.job, SETTLE_TIMEOUT_S, partial(job.settled, max(worlds), 2))
    for ranks in (*worlds, *reversed(worlds[:-1])):
        progress(f"{ranks} ranks")
        if job.worlds.world != ranks:
            job.resize(ranks)
        steps = max(6, round(seconds * ranks / alone_s)) + 2
        # Count from here: the job began at the largest size with its first steps.
        goal = steps + (job.worlds.steps if job.worlds.world == ranks else 0)
        wait_for(f"steps of {ranks} ranks", job.job, SETTLE_TIMEOUT_S, partial(job.settled, ranks, goal))
    job.stop()
    rates = {ranks: steps_per_s(job.commits.commits, ranks) for ranks in worlds}
    alone = rates[1]
    if alone is None or None in rates.values():
        raise BenchError(f"the job made too few steps to know its throughput; see {folder}")
    rows = [
        {"ranks": ranks, "steps_per_s": rate, "share_of_linear": rate / (ranks * alone)}
        for ranks, rate in rates.items()
        if rate is not None
    ]
    return {"worlds": rows, "share_of_linear": rows[-1]["share_of_linear"]}
