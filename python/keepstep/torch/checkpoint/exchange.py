"""How the ranks of one save communicate: over the job's Store, without collectives of the training."""

from __future__ import annotations

from typing import Any

from keepstep._engine import Assignment
from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.checkpoint.plan_codec import packed, unpacked

LOOK_MS = 500


class Cancelled(Exception):
    """The generation ended, or a rank failed, while the ranks agreed on a save."""


class Exchange:
    """Of one save, in one generation."""

    def __init__(self, session: Session, given: Assignment, name: str) -> None:
        self._session = session
        self.rank = given.rank
        self.world = given.world_size
        self.generation = given.generation
        self._identity = (given.term, given.generation)
        self._prefix = f"{given.generation}/keepstep-checkpoint/{name}"  # the keys go with the generation

    def _ask(self, op: str, key: str, value: bytes = b"") -> bytes:
        while True:
            # In short waits: a wait that starts after the next generation has begun would not be interrupted.
            answered, interrupted, _, result = self._session.store(op, f"{self._prefix}/{key}", value, LOOK_MS)
            if answered:
                return result
            now = self._session.assignment
            if interrupted or now is None or (now.term, now.generation) != self._identity:
                raise Cancelled

    def gather(self, what: str, mine: Any) -> list[Any] | None:
        """On rank 0 all ranks' values, in rank order; None elsewhere. A failure on any rank is raised on rank 0."""
        if self.rank != 0:
            self._ask("set", f"{what}/{self.rank}", packed(mine))
            return None
        others = [self._ask("get", f"{what}/{rank}") for rank in range(1, self.world)]
        return [mine, *map(_unpacked_or_error, others)]

    def scatter(self, what: str, of_all: list[Any] | None) -> Any:
        """The value that rank 0 gave for this rank."""
        if of_all is None:
            return unpacked(self._ask("get", f"{what}/{self.rank}"))
        for rank in range(1, self.world):
            self._ask("set", f"{what}/{rank}", packed(of_all[rank]))
        return of_all[0]


def _unpacked_or_error(data: bytes) -> Any:
    # As a value, like any failure on that rank: rank 0 has to answer all.
    try:
        return unpacked(data)
    except KeepstepError as error:
        return error
