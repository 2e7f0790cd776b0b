"""Decides whether a job survived its faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.certify import evidence
from keepstep.certify.evidence import Effect, Evidence
from keepstep.certify.job import Ran
from keepstep.certify.trials import Trial
from keepstep.report.analysis import Analysis, analyse
from keepstep.report.journal import RunDirectoryError, read_objects
from keepstep.report.recovery import PHASES

SURVIVES = "survives"  # nothing is lost, and every bit is that of the undisturbed run
RESTARTS = "restarts"  # the same result, but committed steps were computed again
LOST = "DOES NOT"  # it failed, hung, or trained something else
DID_NOT_HAPPEN = "not tried"  # the fault never happened


@dataclass
class Outcome:
    """The outcome of one fault. ``downtime_ms``: less one step; ``phases_ms``: of the longest recovery."""

    trial: Trial
    verdict: str
    because: str
    seconds: float
    folder: Path
    command: str
    recoveries: int = 0
    replaced_by: list[str] = field(default_factory=list)
    downtime_ms: float | None = None
    phases_ms: dict[str, float | None] = field(default_factory=dict)
    lost_steps: int = 0
    repeated: dict[Effect, int] = field(default_factory=dict)  # how many more times than undisturbed

    @property
    def survived(self) -> bool:
        return self.verdict != LOST


@dataclass
class References:
    """The two undisturbed runs. ``differs``: where they differ; None if they are the same bit for bit."""

    first: Evidence
    second: Evidence

    def __post_init__(self) -> None:
        self.differs = evidence.first_difference(self.second, self.first)
        self.replicas = evidence.unequal_replicas(self.first)


def injected(ran: Ran) -> list[str]:
    """The faults that were carried out, as given, from all nodes' journals."""
    found = []
    for path in sorted(ran.folder.glob("run*/journal*.jsonl")):
        found += [str(line.get("because", "")) for line in read_objects(path)[0] if line.get("event") == "injected"]
    return found


def how_it_ended(ran: Ran, analysis: Analysis | None) -> str:
    if ran.exit_code is None:
        return f"it had not ended after {ran.seconds:.0f} s"
    because = analysis.ended_because if analysis is not None else ""
    return f"exit code {ran.exit_code}{': ' + because.splitlines()[0] if because else ''}"


def analysis_of(ran: Ran) -> Analysis | None:
    try:
        return analyse(ran.journal)
    except RunDirectoryError:
        return None


def judge(trial: Trial, ran: Ran, references: References) -> Outcome:
    """Judges a job by what it left behind."""
    analysis = analysis_of(ran)
    mine = evidence.read(ran.folder, ran.outputs)
    outcome = Outcome(trial, SURVIVES, "", ran.seconds, ran.folder, ran.command)
    if analysis is not None:
        _costs(outcome, analysis)
    outcome.repeated = repeated(mine, references)
    happened = injected(ran)
    absent = [fault for fault in trial.faults if fault not in happened]
    difference = None if references.differs else evidence.first_difference(mine, references.first)
    if ran.exit_code != 0:
        outcome.verdict, outcome.because = LOST, how_it_ended(ran, analysis)
    elif absent:
        outcome.verdict, outcome.because = DID_NOT_HAPPEN, f"{absent[0]} never came about"
    elif difference:
        outcome.verdict, outcome.because = LOST, f"differs from the undisturbed run from {difference}"
    elif gap := evidence.missing(mine, references.first):
        # Without a witness the journal is the only evidence, and this fault may have hit the journal's disk.
        journal_only = not references.first.witnessed and any(fault.startswith("disk-full") for fault in trial.faults)
        outcome.verdict, outcome.because = (SURVIVES, "") if journal_only else (LOST, gap)
    elif outcome.lost_steps or any(
        "restart" in recovery.rungs for recovery in (analysis.recoveries if analysis else ())
    ):
        outcome.verdict = RESTARTS
        outcome.because = f"{outcome.lost_steps} committed steps were computed again"
    if outcome.verdict == SURVIVES:
        outcome.because = _remark(trial, outcome, references)
    return outcome


def _remark(trial: Trial, outcome: Outcome, references: References) -> str:
    remarks = []
    if trial.passes and outcome.replaced_by:
        remarks.append("a rank was replaced though the fault passes by itself")
    if references.differs:
        remarks.append("as far as can be seen: bits cannot be compared")
    return "; ".join(remarks)


def _costs(outcome: Outcome, analysis: Analysis) -> None:
    outcome.recoveries = len(analysis.recoveries)
    outcome.lost_steps = analysis.totals.lost_steps
    for recovery in analysis.recoveries:
        outcome.replaced_by += [how for how in recovery.replaced_by if how not in outcome.replaced_by]
    known = [recovery for recovery in analysis.recoveries if recovery.downtime_s is not None]
    if known:
        longest = max(known, key=lambda recovery: recovery.downtime_s or 0.0)
        outcome.downtime_ms = round((longest.downtime_s or 0.0) * 1000, 1)
        phases = longest.phases_s()
        outcome.phases_ms = {
            phase: None if seconds is None else round(seconds * 1000, 1)
            for phase, seconds in ((phase, phases[phase]) for phase in PHASES)
        }


def repeated(mine: Evidence, references: References) -> dict[Effect, int]:
    """Effects that happened more often than in the undisturbed runs, if both of those had them equally often."""
    found = {}
    first, second = references.first, references.second
    for effect, count in first.effects.items():
        if second.effects[effect] == count and mine.effects[effect] > count:
            found[effect] = mine.effects[effect] - count
    lines: Counter[str] = first.lines
    for line, count in lines.items():
        if second.lines[line] == count and mine.lines[line] > count:
            found[("prints", line)] = mine.lines[line] - count
    return found
