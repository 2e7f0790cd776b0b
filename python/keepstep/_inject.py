"""Which faults of ``keepstep run --inject`` and ``keepstep inject`` are due at each named phase of a step.

`keepstep._faults` carries them out; the agent has parsed and checked them (src/agent/job/inject_spec.h).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from keepstep import _faults
from keepstep._engine import Fault

if TYPE_CHECKING:
    from keepstep._session import Session

# In these phases a worker has no current step, so a fault fires at the first opportunity at or after its step.
_LOOSE_PHASES = {"hydrate", "recovery", "build"}
# Phases in which a worker looks for faults that the agent has sent in the meantime.
_POLL_PHASES = _LOOSE_PHASES | {"between"}


def repeats(fault: Fault) -> bool:
    """Whether the fault happens at several steps, once at each. A slowdown is a single, lasting fault."""
    return fault.kind != "slow" and fault.times is not None and fault.times > 1


def starts_at(fault: Fault, phase: str, step: int) -> bool:
    """Whether the fault may happen at `step`."""
    if phase in _LOOSE_PHASES or fault.late or repeats(fault) or fault.probability is not None:
        return step >= (fault.step or 0)
    return step == fault.step


def drawn(fault: Fault, job_seed: int, step: int, rank: int | None) -> bool:
    """Draws whether the fault happens. The same seed, step and rank give the same answer in every process."""
    if fault.probability is None:
        return True
    seed = job_seed if fault.seed is None else fault.seed
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fault.probability * 2**64


class Injector:
    """The faults that this worker may still have to carry out.

    Args:
        faults: those known at the start.
        listens: whether to accept faults that the agent sends later. False in a rehearsal, where nothing may fire:
            faults that arrive meanwhile are for later.
    """

    def __init__(self, session: Session, faults: list[Fault], listens: bool = True) -> None:
        self._session = session
        self._listens = listens
        self._waiting = list(faults)
        self._seen: dict[str, int] = {}  # the step at which each fault was last considered, by key
        self._slow: _faults.Slowness | None = None
        self.active = bool(self._waiting)

    def at(self, phase: str, step: int) -> None:
        """Fires the faults due at `phase` of `step`. Each fires as often as specified, counted over the whole job."""
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
            self._seen[fault.key] = step  # considered once per step
        return drawn(fault, session.welcome.seed, step, session.rank_or_none)

    def _claim(self, fault: Fault, step: int) -> bool:
        """Whether this worker is the one to carry out the fault: others may have reached the same point."""
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
