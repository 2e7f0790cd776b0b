"""Everything found out about a script, which the page shows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from keepstep.certify.evidence import Effect
from keepstep.certify.judge import LOST, RESTARTS, SURVIVES, Outcome
from keepstep.certify.trials import NotTried


@dataclass
class Certificate:
    """``blocked``: why no fault could be tried (the undisturbed run failed, or state is not protected)."""

    script: str
    world: int = 0
    nodes: int = 1
    spares: int = 0
    spare_nodes: int = 0
    steps: int = 0
    recoverable: bool = True
    witnessed: bool = True  # its ranks recorded what they hold; otherwise only losses are known
    blocked: str = ""
    differs: str | None = None
    replicas: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    not_tried: list[NotTried] = field(default_factory=list)
    plain_restart_s: float | None = None  # for a script without a recoverable function: the extra time of a fault

    @property
    def holds(self) -> bool:
        return not self.blocked and all(outcome.survived for outcome in self.outcomes)

    def headline(self) -> str:
        if self.blocked:
            return "nothing could be tried"
        counts = {verdict: sum(o.verdict == verdict for o in self.outcomes) for verdict in (SURVIVES, RESTARTS, LOST)}
        words = [f"survives {counts[SURVIVES]} of {sum(counts.values())} faults"]
        if counts[RESTARTS]:
            words.append(f"{counts[RESTARTS]} with a restart of all ranks")
        if counts[LOST]:
            words.append(f"{counts[LOST]} not at all")
        return ", ".join(words)

    def side_effects(self) -> list[tuple[Effect, int, list[str]]]:
        """Repeated effects: each with the most repetitions in one job, and the faults that caused them."""
        most: dict[Effect, int] = defaultdict(int)
        where: dict[Effect, list[str]] = defaultdict(list)
        for outcome in self.outcomes:
            for effect, count in outcome.repeated.items():
                most[effect] = max(most[effect], count)
                where[effect].append(outcome.trial.name)
        return [(effect, most[effect], where[effect]) for effect in sorted(most)]

    def findings(self) -> list[tuple[str, str]]:
        """A title and a sentence each; good news is included."""
        if self.blocked:
            return [("blocked", self.blocked)]
        found = []
        if not self.recoverable:
            cost = (
                "" if self.plain_restart_s is None else f", which took {self.plain_restart_s:.1f} s more than no fault"
            )
            found.append(
                ("restarts", f"the script has no @keepstep.recoverable function: a fault restarts all ranks{cost}; the "
                 "script goes on from its own checkpoint, if it has one")
            )  # fmt: skip
            return found  # without steps there is nothing to compare
        if not self.witnessed:
            found.append(("compared", "the losses only: a program without Python does not say what its ranks hold"))
        else:
            found.append(("protected state", "the checking mode found nothing unprotected"))
        found.append(
            ("deterministic", "no: two undisturbed runs differ first at " + self.differs + "; bits were not compared")
            if self.differs
            else ("deterministic", "yes: two undisturbed runs are the same bit for bit")
        )
        if self.replicas:
            names = ", ".join(self.replicas[:8])
            found.append(
                ("replicas", f"protected, but not the same on all ranks, and a newcomer gets another rank's: {names}")
            )
        return found


def effect_text(effect: Effect) -> str:
    what, of = effect
    return f"{what} '{of}'" if what == "prints" else f"{what} {of}"


def as_json(found: Certificate) -> dict[str, Any]:
    return {
        "script": found.script,
        "holds": found.holds,
        "headline": found.headline(),
        "job": {
            "world_size": found.world, "nodes": found.nodes, "spares": found.spares,
            "spare_nodes": found.spare_nodes, "steps": found.steps, "recoverable": found.recoverable,
            "devices": found.devices,
        },
        "blocked": found.blocked or None,
        "deterministic": None if found.blocked or not found.recoverable else found.differs is None,
        "differs_at": found.differs,
        "unequal_replicas": found.replicas,
        "plain_restart_s": found.plain_restart_s,
        "faults": [
            {
                "name": outcome.trial.name, "says": outcome.trial.says, "inject": list(outcome.trial.faults),
                "verdict": outcome.verdict, "survived": outcome.survived, "because": outcome.because,
                "recoveries": outcome.recoveries, "replaced_by": outcome.replaced_by,
                "downtime_ms": outcome.downtime_ms, "phases_ms": outcome.phases_ms,
                "lost_steps": outcome.lost_steps, "seconds": round(outcome.seconds, 3),
                "repeated": [{"what": what, "of": of, "times": n} for (what, of), n in outcome.repeated.items()],
                "folder": str(outcome.folder), "command": outcome.command,
            }
            for outcome in found.outcomes
        ],
        "not_tried": [{"name": each.name, "because": each.because} for each in found.not_tried],
    }  # fmt: skip
