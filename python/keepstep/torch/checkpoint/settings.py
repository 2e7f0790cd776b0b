"""Where ``run.checkpoint`` saves, how often, and what stays there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from keepstep._errors import KeepstepError
from keepstep._session import Session

MOST_MEMORY_EVERY = 1_000_000
MOST_PLACES = 8  # each has two flags in the votes
T = TypeVar("T")
Settings = dict[str, Any]  # the arguments of run.checkpoint, by name; empty: it was not called


@dataclass(frozen=True)
class Terms:
    """Of one place. `keep`, `max_age_s`: as of `keepstep.torch.checkpoint.Writer`."""

    url: str
    every: int
    keep: int | None
    max_age_s: float | None


def _each(name: str, value: T | Sequence[T], places: int) -> list[Any]:
    """One value for each place: the same for all, or a list of them."""
    if isinstance(value, (list, tuple)):
        if len(value) != places:
            raise KeepstepError(
                f"run.checkpoint({name}={value!r}): {len(value)} values for {places} places in durable=; give one for "
                "all, or a list with one for each"
            )
        return list(value)
    return [value] * places


def terms_of(
    durable: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    every: int | Sequence[int],
    keep: int | Sequence[int | None] | None,
    max_age_s: float | Sequence[float | None] | None,
) -> tuple[Terms, ...]:
    """The arguments of ``run.checkpoint``, checked."""
    urls = [os.fspath(each) for each in ([durable] if isinstance(durable, (str, os.PathLike)) else durable)]
    if not 1 <= len(urls) <= MOST_PLACES:
        raise KeepstepError(f"run.checkpoint(durable=...): {len(urls)} places; 1 to {MOST_PLACES} can be saved to")
    if len(set(urls)) < len(urls):
        raise KeepstepError(f"run.checkpoint(durable={urls!r}): a place stands there twice")
    found = []
    rest = [_each(name, value, len(urls)) for name, value in
            (("every", every), ("keep", keep), ("max_age_s", max_age_s))]  # fmt: skip
    for url, steps, count, age in zip(urls, *rest, strict=True):
        if steps < 1:
            raise KeepstepError(f"run.checkpoint(every={steps}): a number of steps from 1 on is needed")
        if count is not None and count < 1:
            raise KeepstepError(f"run.checkpoint(keep={count}): at least 1 is needed, or None to keep all")
        if age is not None and age <= 0:
            raise KeepstepError(f"run.checkpoint(max_age_s={age}): seconds above 0 are needed, or None for any age")
        found.append(Terms(url, steps, count, age))
    return tuple(found)


def settings_of(terms: tuple[Terms, ...], memory_every: int | None) -> Settings:
    """What must be the same on all ranks."""
    return {
        "durable": [each.url for each in terms], "every": [each.every for each in terms],
        "keep": [each.keep for each in terms], "max_age_s": [each.max_age_s for each in terms],
        "memory_every": memory_every,
    }  # fmt: skip


def require_same(session: Session, rank: int, mine: Settings) -> None:
    """KeepstepError where another rank has other settings: they would wait for each other's saves for ever, or have
    copies of different steps. The first process of the job that asks says what it has, and is what others compare with.
    """
    desired = json.dumps({"rank": rank, "settings": mine}).encode()
    # An empty expectation: set by the first that asks, told to all others.
    answered, _, _, value = session.store(
        "compare_set", "job/checkpoint-settings", b"0:" + desired, -1, ends_with_generation=False
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


def check_memory_every(steps: int | None, elastic: bool) -> None:
    """Raises where copies in memory cannot be made so often. `elastic`: the job may change its size."""
    if steps is None or (type(steps) is int and steps == 1):
        return
    if type(steps) is not int or not 1 <= steps <= MOST_MEMORY_EVERY:
        raise KeepstepError(
            f"run.checkpoint(memory_every={steps!r}): a number of steps from 1 to {MOST_MEMORY_EVERY:,} is needed, or "
            "None: sharded state is copied into memory in every step, other state not at all"
        )
    if elastic:
        raise KeepstepError(
            f"run.checkpoint(memory_every={steps}): this job is elastic (--nnodes MIN:MAX or --min-replicas), and who "
            "leaves it gives away copies of the step at which it leaves; give 1, or leave it out"
        )
