"""Carrying out injected faults (``keepstep run --inject``) at named phases of a step."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from keepstep._messages import MessageType

if TYPE_CHECKING:
    from keepstep._session import Session

# Phases in which a worker has no current step: they fire at the first occasion at or after the named step.
_LOOSE_PHASES = {"hydrate", "recovery", "build"}


class InjectedFault(Exception):
    """The transient exception that ``--inject exception:...`` raises."""


@dataclass(frozen=True)
class Injection:
    """One ``KIND:rank=R|any,step=K,phase=P[,on=spare]``; already checked by the launcher."""

    index: int
    text: str
    kind: str
    rank: int | None
    step: int
    phase: str
    on_spare: bool

    @staticmethod
    def parse(index: int, text: str) -> Injection:
        kind, _, rest = text.partition(":")
        fields = dict(part.split("=", 1) for part in rest.split(","))
        rank = fields.get("rank", "any")
        return Injection(
            index,
            text,
            kind,
            None if rank == "any" else int(rank),
            int(fields.get("step", "1")),
            fields.get("phase", "forward"),
            fields.get("on") == "spare",
        )


class Injector:
    """The faults this worker may still have to carry out."""

    def __init__(self, session: Session, texts: list[str | None]) -> None:
        self._session = session
        self._waiting = [Injection.parse(i, text) for i, text in enumerate(texts) if text is not None]
        self.active = bool(self._waiting)

    def at(self, phase: str, step: int) -> None:
        """Fires what is due at `phase` of `step`; each fault fires once in the whole job."""
        if not self.active:
            return
        for injection in list(self._waiting):
            if injection.phase != phase or (injection.on_spare and not self._session.spare):
                continue
            if not (step >= injection.step if phase in _LOOSE_PHASES else step == injection.step):
                continue
            if injection.rank is not None and injection.rank != self._session.rank_or_none:
                continue
            self._waiting.remove(injection)
            self.active = bool(self._waiting)
            if self._session.claim_once(f"inject/{injection.index}"):
                self._fire(injection)

    def _fire(self, injection: Injection) -> None:
        self._session.send(
            MessageType.INJECTED,
            {"index": injection.index, "spec": injection.text, "ns": time.monotonic_ns()},
        )
        if injection.kind == "exception":
            raise InjectedFault(f"injected: {injection.text}")
        if injection.kind == "exit":
            os._exit(13)
        _die(signal.SIGSEGV if injection.kind == "segv" else signal.SIGKILL)


def _die(number: signal.Signals) -> NoReturn:
    if number == signal.SIGSEGV:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
    os.kill(os.getpid(), number)
    while True:
        time.sleep(1)
