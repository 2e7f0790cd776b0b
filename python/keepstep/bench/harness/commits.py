"""What the ranks of a job wrote after each commit, and the resulting downtime.

Each process of a job appends lines ``step rank generation ranks seconds`` to its own file (jobs/commit_log.py); seconds
are CLOCK_MONOTONIC, ``ranks`` is the number of ranks in the step. One definition of downtime for every tool.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from keepstep.bench.harness.appended import AppendedLines


@dataclass(frozen=True)
class RankCommit:
    pid: int
    step: int
    rank: int
    generation: int
    ranks: int
    mono: float


class CommitReader:
    """Follows the files of one job. Incomplete lines of killed processes are never returned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: list[RankCommit] = []
        self._files: dict[Path, AppendedLines] = {}

    def poll(self) -> list[RankCommit]:
        """The new commits; `commits` has all of them."""
        new: list[RankCommit] = []
        for path in self.folder.glob("*.commits"):
            for line in self._files.setdefault(path, AppendedLines(path)).poll():
                step, rank, generation, ranks, mono = line.split()
                new.append(RankCommit(int(path.stem), int(step), int(rank), int(generation), int(ranks), float(mono)))
        self.commits += new
        return new

    def last_step(self) -> int:
        return max((commit.step for commit in self.commits), default=0)


@dataclass(frozen=True)
class NewStep:
    """The first step that no rank had committed before a fault, and when the last of `ranks` ranks committed it."""

    step: int
    mono: float


def first_new_step(commits: Iterable[RankCommit], fault_mono: float, ranks: int) -> NewStep | None:
    """None if there is none yet. `ranks` different ranks must have committed the step after the fault."""
    before = 0
    after: dict[int, dict[int, float]] = defaultdict(dict)
    for commit in commits:
        if commit.mono <= fault_mono:
            before = max(before, commit.step)
        else:
            after[commit.step].setdefault(commit.rank, commit.mono)
    for step in sorted(after):
        if step > before and len(after[step]) >= ranks:
            return NewStep(step, sorted(after[step].values())[ranks - 1])
    return None


def redone_steps(commits: Iterable[RankCommit], fault_mono: float) -> int:
    """How many steps some rank committed both before and after the fault."""
    before: set[tuple[int, int]] = set()
    again: set[int] = set()
    for commit in sorted(commits, key=lambda commit: commit.mono):
        key = (commit.rank, commit.step)
        if commit.mono <= fault_mono:
            before.add(key)
        elif key in before:
            again.add(commit.step)
    return len(again)


def median_step_s(commits: Iterable[RankCommit], ranks: int, faults_mono: Iterable[float] = ()) -> float | None:
    """Median seconds from one step on all ranks to the next, leaving out two steps after each start or fault."""
    complete: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for commit in commits:
        complete[commit.generation, commit.step][commit.rank] = commit.mono
    times = {key: max(by_rank.values()) for key, by_rank in complete.items() if len(by_rank) == ranks}
    first = {generation: min(step for g, step in times if g == generation) for generation, _ in times}
    faults = list(faults_mono)
    gaps = [
        mono - times[generation, step - 1]
        for (generation, step), mono in times.items()
        if (generation, step - 1) in times
        and step - 1 > first[generation]
        and not any(times[generation, step - 1] <= fault <= mono for fault in faults)
    ]
    return statistics.median(gaps) if gaps else None
