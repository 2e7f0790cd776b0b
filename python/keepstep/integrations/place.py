"""Rank, world and device number of this process, for libraries that ask before it has a rank.

They ask as soon as their trainer is made. Under ``keepstep run`` the ranks belong to a generation, and a spare builds
everything in advance, before it has one. Until then it takes itself for the world's last rank, which prints and saves
nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from keepstep._session import RankEnviron, Session


class Place(NamedTuple):
    rank: int
    world_size: int
    local_rank: int
    node_rank: int


def place(session: Session) -> Place:
    """Of this process now; does not wait for a rank."""
    known = session.assignment
    if known is None:
        last = session.welcome.world - 1
        return Place(last, session.welcome.world, last, 0)
    return Place(known.rank, known.world_size, int(os.environ["LOCAL_RANK"]), int(os.environ["GROUP_RANK"]))


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Inside, environment variables that depend on the rank are missing as long as this process has none."""
    waited_for = RankEnviron.needs_rank
    RankEnviron.needs_rank = frozenset()
    try:
        yield
    finally:
        RankEnviron.needs_rank = waited_for
