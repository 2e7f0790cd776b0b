"""Changes of an elastic job's size: the journal's ``resized`` lines, and how long training stood still for each."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.report.journal import Commit, Line


@dataclass(frozen=True)
class Resize:
    """One change of the world.

    Attributes:
        t: seconds since the job started.
        before, now: number of ranks.
        step: the last step committed before it.
        pause_s: from that step's commit to the next one, less one median step, at least 0; None without both.
    """

    t: float
    before: int
    now: int
    step: int | None
    because: str
    pause_s: float | None


def resizes_of(lines: list[Line], commits: list[Commit], step_s: float | None) -> list[Resize]:
    """In order."""
    found = []
    for line in lines:
        ranks, before, now = line.integer("ranks"), line.integer("from"), line.integer("to")
        if line.event != "resized" or not ranks or not before or not now:
            continue
        earlier = [commit for commit in commits if commit.mono <= line.mono]
        later = next((commit for commit in commits if commit.mono > line.mono), None)
        pause = None
        if earlier and later is not None and step_s is not None:
            pause = max(0.0, later.mono - earlier[-1].mono - step_s)
        found.append(
            Resize(line.t, before * ranks // now, ranks, earlier[-1].step if earlier else None, line.because, pause)
        )
    return found
