"""One recovery: from the detection of a fault to the first step that all ranks of the new generation committed."""

from __future__ import annotations

from dataclasses import dataclass, field

PHASES = ("detect", "decide", "interrupt", "re_form", "hydrate", "first_step")

PHASE_TITLES = {
    "detect": "detect",
    "decide": "decide",
    "interrupt": "interrupt",
    "re_form": "re-form",
    "hydrate": "hydrate",
    "first_step": "first step",
}


@dataclass(frozen=True)
class Fault:
    """What failed, and how that was detected. ``happened_mono`` (seconds) is known only for faults caused on purpose.

    A lost node is one fault (``kind`` "node"): ``node`` and its ``ranks`` are known; rank, worker and pid are not.
    """

    mono: float
    rank: int | None
    worker: int | None
    pid: int | None
    kind: str
    detected_by: str
    signal: int | None
    exit_code: int | None
    step: int | None
    because: str
    happened_mono: float | None
    node: int | None = None
    ranks: list[int] = field(default_factory=list)

    def how(self) -> str:
        if self.kind == "node":
            return "lost"
        if self.kind == "exception":
            return "an exception"
        if self.kind == "link":
            return "a broken connection between nodes"
        if self.kind == "hang":
            return "a hang"
        if self.kind == "digests":
            return "digests that differ"
        if self.kind == "corruption":
            return "silent corruption"
        if self.signal is not None and self.signal > 0:  # -1: not known
            return f"signal {self.signal}" if self.signal != 9 else "SIGKILL"
        if self.exit_code:
            return f"exit code {self.exit_code}"
        return "death"


@dataclass(frozen=True)
class Hydration:
    """The hydration of one newcomer: ``bytes_from[i]`` bytes came from rank ``sources[i]``."""

    rank: int
    bytes: int
    seconds: float
    sources: list[int]
    bytes_from: list[int]


@dataclass
class Marks:
    """When the recovery reached each point, in CLOCK_MONOTONIC seconds; None if the journal does not say.

    If a second fault interrupts a recovery, later marks overwrite earlier ones: the phases are those of the attempt
    that succeeded, and ``decide`` includes all that failed before.
    """

    fault: float | None = None
    detected: float | None = None
    verdict: float | None = None
    interrupted: float | None = None
    activated: float | None = None
    formed: float | None = None
    first_commit: float | None = None

    def chain(self) -> list[float | None]:
        return [
            self.fault,
            self.detected,
            self.verdict,
            self.interrupted,
            self.activated,
            self.formed,
            self.first_commit,
        ]

    def forget_attempt(self) -> None:
        """A new fault: everything after the detection has to happen again."""
        self.verdict = self.interrupted = self.activated = self.formed = None


@dataclass
class Recovery:
    """A recovery according to the journal. ``complete``: all ranks of the new generation committed a step."""

    started_t: float
    marks: Marks = field(default_factory=Marks)
    faults: list[Fault] = field(default_factory=list)
    rungs: list[str] = field(default_factory=list)
    verdict: str | None = None
    verdict_because: str = ""
    step: int | None = None
    from_generation: int = 0
    to_generation: int = 0
    replaced_by: list[str] = field(default_factory=list)
    newcomers: list[int] = field(default_factory=list)
    hydrations: list[Hydration] = field(default_factory=list)
    lost_steps: int = 0
    redone_steps: int = 0  # committed steps redone by ranks that went back to copies of sharded state
    downtime_s: float | None = None

    @property
    def complete(self) -> bool:
        return self.marks.first_commit is not None

    @property
    def began_mono(self) -> float | None:
        return self.marks.fault if self.marks.fault is not None else self.marks.detected

    @property
    def total_s(self) -> float | None:
        """From the fault (from its detection, if its time is unknown) to the first step of all ranks."""
        if self.marks.first_commit is None or self.began_mono is None:
            return None
        return self.marks.first_commit - self.began_mono

    @property
    def bytes_moved(self) -> int:
        return sum(hydration.bytes for hydration in self.hydrations)

    def phases_s(self) -> dict[str, float | None]:
        """Seconds of each phase; None if one of its two ends is missing."""
        chain = self.marks.chain()
        return {
            phase: None if begin is None or end is None else max(0.0, end - begin)
            for phase, begin, end in zip(PHASES, chain[:-1], chain[1:], strict=True)
        }
