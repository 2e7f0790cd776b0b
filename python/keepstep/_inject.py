"""Which injected faults are due: at named phases of a step, of ``keepstep run --inject`` and ``keepstep inject``.

What each of them does is in `keepstep._faults`; the agent parsed and checked them (src/agent/job/inject_spec.h).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keepstep import _faults
from keepstep._engine import Fault

if TYPE_CHECKING:
    from keepstep._session import Session

# Phases in which a worker has no current step: they fire at the first occasion at or after the named step.
_LOOSE_PHASES = {"hydrate", "recovery", "build"}
# Where a worker looks for faults that the agent sent since.
_POLL_PHASES = _LOOSE_PHASES | {"between"}


def repeats(fault: Fault) -> bool:
    """At several steps, once at each; what slows a rank down is one fault that goes on."""
    return fault.kind != "slow" and fault.times is not None and fault.times > 1


def starts_at(fault: Fault, phase: str, step: int) -> bool:
    """Whether `step` is one at which it may happen."""
    if phase in _LOOSE_PHASES or fault.late or repeats(fault) or fault.probability is not None:
        return step >= (fault.step or 0)
    return step == fault.step


def drawn(fault: Fault, job_seed: int, step: int, rank: int | None) -> bool:
    """Whether chance says so: the same answer for the same seed, step and rank, in whatever process."""
    if fault.probability is None:
        return True
    seed = job_seed if fault.seed is None else fault.seed
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fault.probability * 2**64


class Injector:
    """The faults this worker may still have to carry out.

    Args:
        faults: those that it knows of at the start.
        listens: whether it also takes what the agent sends later. In a rehearsal it does not: nothing may fire there,
            and what comes meanwhile is for afterwards.
    """

    def __init__(self, session: Session, faults: list[Fault], listens: bool = True) -> None:
        self._session = session
        self._listens = listens
        self._waiting = list(faults)
        self._seen: dict[str, int] = {}  # the step at which a fault was last looked at, by key
        self._slow: _faults.Slowness | None = None
        self.active = bool(self._waiting)

    def at(self, phase: str, step: int) -> None:
        """Fires what is due at `phase` of `step`; each fault fires as often in the whole job as it says."""
        if self._listens and phase in _POLL_PHASES:
            for fault in self._session.engine.take_injections():
                self._waiting.append(fault)
                self.active = True
        if not self.active:
            return
        if self._slow is not None and not self._slow.at(phase, step):
            self._slow = None
        for fault in list(self._waiting):
            if self._due(fault, phase, step) and self._claim(fault, step):
                self._fire(fault, step)
        self.active = bool(self._waiting) or self._slow is not None

    def _due(self, fault: Fault, phase: str, step: int) -> bool:
        session = self._session
        if fault.phase != phase or (fault.on_spare and not session.spare):
            return False
        if fault.rank is not None and fault.rank != session.rank_or_none:
            return False
        if self._seen.get(fault.key) == step or not starts_at(fault, phase, step):
            return False
        if repeats(fault) or fault.probability is not None:
            self._seen[fault.key] = step  # one look a step, however often it comes by
        return drawn(fault, session.welcome.seed, step, session.rank_or_none)

    def _claim(self, fault: Fault, step: int) -> bool:
        """Whether it is this worker that carries it out: others may be as far."""
        key = f"job/inject/{fault.key}"
        if not repeats(fault):
            self._waiting.remove(fault)
            return self._session.claim_once(key)
        if not self._session.claim_once(f"{key}/{step}"):
            return False
        count = self._session.count(key)
        if count >= (fault.times or 1):
            self._waiting.remove(fault)
        return 0 < count <= (fault.times or 1)

    def _fire(self, fault: Fault, step: int) -> None:
        plan = _faults.plan(fault, self._session.welcome.seed, step, self._session.choose_flip)
        self._session.engine.tell_injected(fault.key, plan.detail, last=fault not in self._waiting)
        if fault.kind == "slow":
            self._slow = _faults.Slowness(fault, step)
        self.active = bool(self._waiting) or self._slow is not None
        plan.carry_out()
