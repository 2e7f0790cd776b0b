"""A name in a training script, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """``looks_like``: what to look for. ``HPWrapper(abort=)`` is an argument of a call, ``checkpoint.save`` a name in a
    module. The other two are Markdown: a row of the table on the page of the group."""

    looks_like: tuple[str, ...]
    theirs: str
    ours: str


@dataclass(frozen=True)
class Group:
    """Names of packages whose own name begins so. ``page`` has a row for each; links in them lead on from there."""

    packages: tuple[str, ...]
    page: str
    names: tuple[Name, ...]
