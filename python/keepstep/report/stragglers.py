"""Ranks that computed longer than the others, which waited for them: pairs of ``straggler`` lines in the journal."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.report.journal import Line, as_seconds


@dataclass(frozen=True)
class Straggler:
    """One period in which a rank was slow.

    Attributes:
        from_t, until_t: seconds since the job started; ``until_t`` is None if it was slow until the end.
        computed_s, others_s: computing time per step when it was named: its own, and the median of the others.
        share: the share of each step that was then lost to it.
        lost_s: about how much of the run's time was lost to it.
    """

    rank: int
    node: int | None
    host: str
    from_t: float
    until_t: float | None
    computed_s: float
    others_s: float
    share: float
    lost_s: float


def stragglers_of(lines: list[Line]) -> list[Straggler]:
    """In the order in which they were named."""
    found: list[Straggler] = []
    open_: dict[int, Line] = {}

    def close(begin: Line, end: Line | None) -> None:
        rank = begin.integer("rank")
        assert rank is not None
        share = as_seconds(begin.fields.get("share")) or 0.0
        until_t = lines[-1].t if end is None else end.t
        found.append(
            Straggler(
                rank=rank,
                node=begin.integer("slow_node"),
                host=begin.text("host") or "?",
                from_t=begin.t,
                until_t=None if end is None else end.t,
                computed_s=as_seconds(begin.fields.get("computed_s")) or 0.0,
                others_s=as_seconds(begin.fields.get("others_s")) or 0.0,
                share=share,
                lost_s=share * max(0.0, until_t - begin.t),
            )
        )

    for line in lines:
        rank = line.integer("rank") if line.event == "straggler" else None
        if rank is None:
            continue
        if line.fields.get("slow") is True:
            open_.setdefault(rank, line)
        elif rank in open_:
            close(open_.pop(rank), line)
    for begin in open_.values():
        close(begin, None)
    return sorted(found, key=lambda straggler: (straggler.from_t, straggler.rank))
