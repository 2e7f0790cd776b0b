"""Which injected faults are due: at named phases of a step, of ``keepstep run --inject`` and ``keepstep inject``.

What each of them does is in `keepstep._faults`; the agent parsed and checked them (src/agent/job/inject_spec.h).
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keepstep import _faults
from keepstep._messages import MessageType

if TYPE_CHECKING:
    from keepstep._session import Session

# Phases in which a worker has no current step: they fire at the first occasion at or after the named step.
_LOOSE_PHASES = {"hydrate", "recovery", "build"}
# Where a worker looks for faults that the agent sent since.
_POLL_PHASES = _LOOSE_PHASES | {"between"}


@dataclass(frozen=True)
class Injection:
    """One fault, as docs/design/wire_worker.md has it."""

    key: str  # tells faults of a job apart
    text: str  # as the user gave it
    kind: str
    phase: str
    on_spare: bool
    what: str
    late: bool  # came while the job ran: a step that is past means the next one
    rank: int | None
    step: int | None
    probability: float | None
    seed: int | None
    times: int | None
    seconds: float | None
    factor: float | None
    ms: int | None
    mib: int | None

    @property
    def repeats(self) -> bool:
        """At several steps, once at each; what slows a rank down is one fault that goes on."""
        return self.kind != "slow" and self.times is not None and self.times > 1

    def starts_at(self, phase: str, step: int) -> bool:
        """Whether `step` is one at which it may happen."""
        if phase in _LOOSE_PHASES or self.late or self.repeats or self.probability is not None:
            return step >= (self.step or 0)
        return step == self.step

    def drawn(self, job_seed: int, step: int, rank: int | None) -> bool:
        """Whether chance says so: the same answer for the same seed, step and rank, in whatever process."""
        if self.probability is None:
            return True
        seed = job_seed if self.seed is None else self.seed
        digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.probability * 2**64


class Injector:
    """The faults this worker may still have to carry out.

    Args:
        faults: those that it knows of at the start.
        listens: whether it also takes what the agent sends later. In a rehearsal it does not: nothing may fire there,
            and what comes meanwhile is for afterwards.
    """

    def __init__(self, session: Session, faults: list[dict[str, Any]], listens: bool = True) -> None:
        self._session = session
        self._listens = listens
        self._waiting = [Injection(**fault) for fault in faults]
        self._seen: dict[str, int] = {}  # the step at which a fault was last looked at, by key
        self._slow: _faults.Slowness | None = None
        self.active = bool(self._waiting)

    def at(self, phase: str, step: int) -> None:
        """Fires what is due at `phase` of `step`; each fault fires as often in the whole job as it says."""
        if self._listens and phase in _POLL_PHASES:
            for fault in self._session.engine.take_injections():
                self._waiting.append(Injection(**json.loads(fault)))
                self.active = True
        if not self.active:
            return
        if self._slow is not None and not self._slow.at(phase, step):
            self._slow = None
        for injection in list(self._waiting):
            if self._due(injection, phase, step) and self._claim(injection, step):
                self._fire(injection, step)
        self.active = bool(self._waiting) or self._slow is not None

    def _due(self, injection: Injection, phase: str, step: int) -> bool:
        session = self._session
        if injection.phase != phase or (injection.on_spare and not session.spare):
            return False
        if injection.rank is not None and injection.rank != session.rank_or_none:
            return False
        if self._seen.get(injection.key) == step or not injection.starts_at(phase, step):
            return False
        if injection.repeats or injection.probability is not None:
            self._seen[injection.key] = step  # one look a step, however often it comes by
        return injection.drawn(int(session.welcome["seed"]), step, session.rank_or_none)

    def _claim(self, injection: Injection, step: int) -> bool:
        """Whether it is this worker that carries it out: others may be as far."""
        key = f"inject/{injection.key}"
        if not injection.repeats:
            self._waiting.remove(injection)
            return self._session.claim_once(key)
        if not self._session.claim_once(f"{key}/{step}"):
            return False
        count = self._session.count(key)
        if count >= (injection.times or 1):
            self._waiting.remove(injection)
        return 0 < count <= (injection.times or 1)

    def _fire(self, injection: Injection, step: int) -> None:
        plan = _faults.plan(injection, int(self._session.welcome["seed"]), step, self._session.choose_flip)
        self._session.send(
            MessageType.INJECTED,
            {
                "key": injection.key,
                "spec": injection.text,
                "step": step,
                "detail": plan.detail,
                "last": injection not in self._waiting,
                "ns": time.monotonic_ns(),
            },
        )
        if injection.kind == "slow":
            self._slow = _faults.Slowness(injection, step)
        self.active = bool(self._waiting) or self._slow is not None
        plan.carry_out()
