"""The whole of a run: its recoveries and what they cost."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from keepstep.report.data_waits import DataWaits, data_waits_of
from keepstep.report.journal import Commit, Line, RunRecord, read_run
from keepstep.report.recovery import Fault, Recovery
from keepstep.report.resizes import Resize, resizes_of
from keepstep.report.stragglers import Straggler, stragglers_of
from keepstep.report.timeline import recoveries_of

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Totals:
    """Sums over a run; all times in seconds.

    Attributes:
        wall_s: from the journal's first to its last line.
        useful_s: time of committed steps, without the recoveries that fell into them.
        goodput: useful_s / wall_s, the share of the time that made progress; None without a step.
        recovering_s: what the recoveries cost beyond the steps they fell into.
        starting_s: until the first step began (the first commit less one median step).
        lost_rank_seconds: recovering_s x ranks, because every rank waits.
        lost_money: lost_rank_seconds at the given price per rank-hour; None without a price.
    """

    wall_s: float
    starting_s: float | None
    useful_s: float
    goodput: float | None
    recovering_s: float
    lost_rank_seconds: float
    lost_money: float | None
    lost_steps: int
    redone_steps: int
    bytes_moved: int


@dataclass(frozen=True)
class Analysis:
    """The analysis of a run. ``ended``: the exit code in the journal; None if it has none (truncated, or running)."""

    directory: Path
    script: str
    version: str
    world_size: int
    spares: int
    commits: list[Commit]
    median_step_s: float | None
    recoveries: list[Recovery]
    spares_lost: list[Fault]
    resizes: list[Resize]
    stragglers: list[Straggler]
    data_waits: list[DataWaits]
    memory_per_rank: int | None  # bytes of shared memory
    memory_total: int | None
    sockets: int | None  # maximum bytes of the kernel's buffers
    connections_per_rank: int | None
    refused: int
    ended: int | None
    ended_because: str
    outlived: list[str]  # failures that a redo got past
    unreadable: int
    started_mono: float
    totals: Totals


def _first(lines: list[Line], event: str) -> Line | None:
    return next((line for line in lines if line.event == event), None)


def _median_step_s(commits: list[Commit], recoveries: list[Recovery]) -> float | None:
    """The median time between two commits without a recovery in between."""
    gaps = [
        later.mono - earlier.mono
        for earlier, later in pairwise(commits)
        if later.step == earlier.step + 1
        and not any(
            recovery.began_mono is not None and earlier.mono < recovery.began_mono <= later.mono
            for recovery in recoveries
        )
    ]
    return statistics.median(gaps) if gaps else None


def _downtime_s(recovery: Recovery, step_s: float | None) -> float | None:
    """From the fault to the first new step on all ranks, less the one step that would have been done anyway."""
    if recovery.total_s is None or step_s is None:
        return None
    return max(0.0, recovery.total_s - step_s)


def _useful_s(commits: list[Commit], recoveries: list[Recovery], step_s: float) -> float:
    spans = [
        (recovery.began_mono, recovery.marks.first_commit)
        for recovery in recoveries
        if recovery.began_mono is not None and recovery.marks.first_commit is not None
    ]
    useful = step_s if commits else 0.0
    for earlier, later in pairwise(commits):
        gap = later.mono - earlier.mono
        touched = any(begin <= later.mono and end > earlier.mono for begin, end in spans)
        useful += min(gap, step_s) if touched or later.step != earlier.step + 1 else gap
    return max(0.0, useful)


def _totals(
    record: RunRecord, recoveries: list[Recovery], step_s: float | None, world_size: int, price_per_hour: float | None
) -> Totals:
    commits = record.commits
    first, last = record.lines[0].mono, record.lines[-1].mono
    wall_s = max(0.0, max(last, commits[-1].mono if commits else last) - first)
    useful_s = _useful_s(commits, recoveries, step_s) if step_s is not None else 0.0
    recovering_s = sum(recovery.downtime_s or 0.0 for recovery in recoveries)
    lost_rank_seconds = recovering_s * world_size
    money = None if price_per_hour is None else lost_rank_seconds / SECONDS_PER_HOUR * price_per_hour
    starting_s = max(0.0, commits[0].mono - step_s - first) if commits and step_s is not None else None
    return Totals(
        wall_s=wall_s,
        starting_s=starting_s,
        useful_s=useful_s,
        goodput=min(1.0, useful_s / wall_s) if wall_s > 0 and step_s is not None else None,
        recovering_s=recovering_s,
        lost_rank_seconds=lost_rank_seconds,
        lost_money=money,
        lost_steps=sum(recovery.lost_steps for recovery in recoveries),
        redone_steps=sum(recovery.redone_steps for recovery in recoveries),
        bytes_moved=sum(recovery.bytes_moved for recovery in recoveries),
    )


def analyse_record(record: RunRecord, price_per_hour: float | None = None) -> Analysis:
    """``price_per_hour``: the price of one rank (one accelerator), in any currency."""
    recoveries, spares_lost = recoveries_of(record)
    step_s = _median_step_s(record.commits, recoveries)
    for recovery in recoveries:
        recovery.downtime_s = _downtime_s(recovery, step_s)
    started, ended = _first(record.lines, "job_started"), _first(record.lines, "job_ended")
    memory = _first(record.lines, "memory")
    world_size = (started.integer("world_size") if started else None) or 0
    return Analysis(
        directory=record.directory,
        script=(started.text("script") if started else None) or "?",
        version=(started.text("version") if started else None) or "?",
        world_size=world_size,
        spares=(started.integer("spares") if started else None) or 0,
        commits=record.commits,
        median_step_s=step_s,
        recoveries=recoveries,
        spares_lost=spares_lost,
        resizes=resizes_of(record.lines, record.commits, step_s),
        stragglers=stragglers_of(record.lines),
        data_waits=data_waits_of(record.metrics),
        memory_per_rank=(memory.integer("bytes_per_worker") if memory else None),
        memory_total=(memory.integer("total") if memory else None),
        sockets=(memory.integer("sockets") if memory else None),
        connections_per_rank=(memory.integer("connections_per_rank") if memory else None),
        refused=sum(line.event == "refused" for line in record.lines),
        ended=ended.integer("exit_code") if ended else None,
        ended_because=ended.because if ended else "",
        outlived=[line.because for line in record.lines if line.event == "failure_outlived"],
        unreadable=record.unreadable,
        started_mono=record.lines[0].mono,
        totals=_totals(record, recoveries, step_s, world_size, price_per_hour),
    )


def analyse(directory: Path, price_per_hour: float | None = None) -> Analysis:
    """Raises RunDirectoryError if there is nothing to report."""
    return analyse_record(read_run(directory), price_per_hour)
