"""How long a job pauses while its size changes: one definition for every tool.

From the last step that all ranks of the old world committed to the first one that all ranks of the new world committed,
less one step: the median of the new world's next steps, which excludes the machine's other load at that time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from keepstep.bench.harness.commits import CommitReader, RankCommit

# Steps of a world before its size changes again. Later steps share the machine with starting processes.
STEPS = 8

# The phases of our pause, and the journal event that ends each; of several in a generation the last one counts.
PHASES = {
    "seal": "resized",
    "prepare": "generation_prepared",
    "ready": "rank_ready",
    "activate": "activated",
    "hydrate": "hydrated",
    "form": "formed",
    "first_step": "first_commit",
}


@dataclass
class Resize:
    """One resize. `before_mono`: CLOCK_MONOTONIC of the last step before it; times in seconds.

    `step_s`: the median of the next steps. `redone_steps`: steps committed before it and again afterwards.
    `phases_s`: keepstep only.
    """

    before: int
    after: int
    before_mono: float
    after_mono: float
    redone_steps: int
    step_s: float
    pause_s: float
    phases_s: dict[str, float] = field(default_factory=dict)


class Worlds:
    """Follows a job's commits: which steps all ranks of a world committed, and when the last rank did."""

    def __init__(self, reader: CommitReader) -> None:
        self._reader = reader
        self._ranks: dict[tuple[int, int], set[int]] = {}
        self.world = 0  # of the newest complete step
        self.steps = 0  # number of complete steps in that step's generation
        self.last_mono = 0.0  # when the last rank committed that step
        self._newest = 0

    def poll(self) -> None:
        for commit in self._reader.poll():
            key = (commit.generation, commit.step)
            ranks = self._ranks.setdefault(key, set())
            ranks.add(commit.rank)
            if len(ranks) == commit.ranks and commit.generation >= self._newest:
                same = commit.generation == self._newest
                self._newest, self.last_mono = commit.generation, commit.mono
                self.world, self.steps = commit.ranks, self.steps + 1 if same else 1

    def settled(self, ranks: int, steps: int) -> bool:
        """Whether the newest generation has `ranks` ranks and `steps` complete steps."""
        self.poll()
        return self.world == ranks and self.steps >= steps


def complete_steps(commits: Iterable[RankCommit]) -> list[tuple[float, int, int, int]]:
    """(time of the last rank's commit, generation, step, ranks) of every complete step, in order of time."""
    by_rank: dict[tuple[int, int, int], dict[int, float]] = {}
    for commit in commits:
        by_rank.setdefault((commit.generation, commit.step, commit.ranks), {})[commit.rank] = commit.mono
    return sorted(
        (max(monos.values()), generation, step, ranks)
        for (generation, step, ranks), monos in by_rank.items()
        if len(monos) == ranks
    )


def resizes(commits: Sequence[RankCommit]) -> list[Resize]:
    """Every resize, in order."""
    steps = complete_steps(commits)
    monos: dict[int, list[float]] = {}
    for mono, generation, _, _ in steps:
        monos.setdefault(generation, []).append(mono)
    found = []
    for (before_mono, _, last, before), (after_mono, generation, first, after) in pairwise(steps):
        if before == after:
            continue
        # The second step of a generation is not typical either.
        gaps = [end - begin for begin, end in pairwise(monos[generation][1:STEPS])]
        step_s = statistics.median(gaps) if gaps else 0.0
        pause_s = after_mono - before_mono - step_s
        found.append(Resize(before, after, before_mono, after_mono, last + 1 - first, step_s, pause_s))
    return found


def steps_per_s(commits: Sequence[RankCommit], ranks: int) -> float | None:
    """Complete steps per second at `ranks` ranks, over all generations of that size without their first two steps."""
    seconds, count = 0.0, 0
    by_generation: dict[int, list[float]] = {}
    for mono, generation, _, world in complete_steps(commits):
        if world == ranks:
            by_generation.setdefault(generation, []).append(mono)
    for monos in by_generation.values():
        if len(monos) > 2:
            seconds += monos[-1] - monos[1]
            count += len(monos) - 2
    return count / seconds if seconds else None


def add_phases(found: Iterable[Resize], lines: Sequence[Mapping[str, Any]]) -> None:
    """Divides each pause into consecutive phases from the journal, which add up to the pause.

    The first phase starts at the last step of the old world; one step is subtracted from the last phase. A resize
    that a fault disturbed gets no phases.
    """
    for resize in found:
        during = [line for line in lines if resize.before_mono < line["mono"] and line["event"] in PHASES.values()]
        generation = next((line["generation"] for line in during if line["event"] == "generation_prepared"), None)
        ends: dict[str, float] = {}
        for line in during:
            if line["event"] == "resized":
                ends.setdefault("resized", float(line["mono"]))
            elif line["generation"] == generation:
                ended = float(line["committed_mono" if line["event"] == "first_commit" else "mono"])
                ended -= float(line.get("waited", 0.0))  # a node reports all its ranks at once
                ends[line["event"]] = max(ended, ends.get(line["event"], ended))
        if not {"resized", "first_commit"} <= ends.keys() or ends["resized"] > resize.after_mono:
            continue
        last = resize.before_mono
        for phase, event in PHASES.items():
            if event in ends:  # there may have been no hydration
                resize.phases_s[phase] = max(0.0, ends[event] - last)
                last = max(last, ends[event])
        resize.phases_s["first_step"] += resize.after_mono - last - resize.step_s


def summary(found: Sequence[Resize]) -> dict[str, Any]:
    """Medians of all resizes, and by direction."""
    part: dict[str, Any] = _medians(found)
    for name, these in (
        ("grow", [resize for resize in found if resize.after > resize.before]),
        ("shrink", [resize for resize in found if resize.after < resize.before]),
    ):
        part[name] = _medians(these)
    return part


def _medians(found: Sequence[Resize]) -> dict[str, Any]:
    pauses = [resize.pause_s for resize in found]
    phases = {
        phase: statistics.median(times)
        for phase in PHASES
        if (times := [resize.phases_s[phase] for resize in found if phase in resize.phases_s])
    }
    return {
        "pause_s": statistics.median(pauses),
        "best_s": min(pauses),
        "worst_s": max(pauses),
        "resizes": len(found),
        "redone_steps": sum(max(0, resize.redone_steps) for resize in found),
    } | ({"phases": phases} if phases else {})
