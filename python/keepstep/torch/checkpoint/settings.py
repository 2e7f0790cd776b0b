"""The arguments of ``run.checkpoint``, and the check that they are the same on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from keepstep._destination import Destination
from keepstep._errors import KeepstepError
from keepstep._session import Session

MAX_MEMORY_EVERY_STEPS = 1_000_000
MAX_DESTINATIONS = 8  # each has two flags in the votes
Settings = dict[str, Any]  # the arguments of run.checkpoint, by name; empty: it was not called


def checked(destinations: Sequence[object]) -> tuple[Destination, ...]:
    """The destinations given to ``run.checkpoint``, without duplicates."""
    found = tuple(each if isinstance(each, Destination) else Destination(each) for each in destinations)  # type: ignore[arg-type]
    if not 1 <= len(found) <= MAX_DESTINATIONS:
        raise KeepstepError(f"run.checkpoint: {len(found)} destinations; 1 to {MAX_DESTINATIONS} are possible")
    urls = [each.url for each in found]
    if twice := [url for url in urls if urls.count(url) > 1]:
        raise KeepstepError(f"run.checkpoint: the destination {twice[0]} is given twice")
    return found


def settings_of(destinations: tuple[Destination, ...], memory_every_steps: int | None) -> Settings:
    """What must be the same on all ranks."""
    return {
        "url": [each.url for each in destinations], "every_steps": [each.every_steps for each in destinations],
        "keep_last": [each.keep_last for each in destinations],
        "max_age_s": [each.max_age_s for each in destinations], "memory_every_steps": memory_every_steps,
    }  # fmt: skip


def require_same(session: Session, rank: int, mine: Settings) -> None:
    """KeepstepError if another rank has other settings: they would wait for each other's saves for ever, or have copies
    of different steps. All compare with the first process of the job that asks.
    """
    desired = json.dumps({"rank": rank, "settings": mine}).encode()
    # Expected to be empty: the first to ask sets it, all others get it.
    answered, _, _, value = session.store(
        "compare_set", session.key("checkpoint-settings"), b"0:" + desired, -1, ends_with_generation=False
    )
    if not answered or not value:
        return  # the job is over
    first = json.loads(value)
    theirs = first["settings"]
    differ = [
        name for name in {**theirs, **mine} if name not in theirs or name not in mine or theirs[name] != mine[name]
    ]
    if differ:
        raise KeepstepError(
            f"run.checkpoint: rank {rank} {_said(mine, differ)}; rank {first['rank']} {_said(theirs, differ)}. All "
            "ranks must call it, with the same arguments; does one of them depend on the rank, or on the environment?"
        )


def _said(settings: Settings, names: list[str]) -> str:
    if not settings:
        return "does not call it"
    return "has " + ", ".join(f"{name}={_one_if_alike(settings[name])!r}" for name in names)


def _one_if_alike(value: Any) -> Any:
    return value[0] if isinstance(value, list) and all(each == value[0] for each in value) else value


def check_memory_every_steps(steps: int | None, elastic: bool) -> None:
    """Raises if copies in memory cannot be made at this interval. `elastic`: the job may change its size."""
    if steps is None or (type(steps) is int and steps == 1):
        return
    if type(steps) is not int or not 1 <= steps <= MAX_MEMORY_EVERY_STEPS:
        raise KeepstepError(
            f"run.checkpoint(memory_every_steps={steps!r}): 1 to {MAX_MEMORY_EVERY_STEPS:,} steps are "
            "possible, or None: sharded state is copied into memory in every step, other state not at all"
        )
    if elastic:
        raise KeepstepError(
            f"run.checkpoint(memory_every_steps={steps}): this job is elastic (--nnodes MIN:MAX or "
            "--min-replicas), where a rank that leaves needs a copy of its last step; give 1, or leave it out"
        )
