"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        check: what was checked, in a word or two.
        level: an ``error`` keeps jobs from running; with a ``warning`` they run, but slower or less safely.
        found: what was found, in one sentence.
        advice: what to do; empty if all is fine or `found` says it.
    """

    check: str
    level: Level
    found: str
    advice: str = ""


def fine(check: str, found: str) -> Finding:
    return Finding(check, "fine", found)


def warning(check: str, found: str, advice: str = "") -> Finding:
    return Finding(check, "warning", found, advice)


def error(check: str, found: str, advice: str = "") -> Finding:
    return Finding(check, "error", found, advice)


def in_words(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes for people: ``512 MiB``, ``21.1 GiB``."""
    mebibytes = count / (1 << 20)
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"
