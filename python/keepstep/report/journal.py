"""Reads a run directory. Tolerates a truncated last line and unknown events; reports clearly what is missing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RunDirectoryError(Exception):
    """The directory holds no run to report on; the text says what to do."""


@dataclass(frozen=True)
class Line:
    """One line of the journal. ``mono`` is CLOCK_MONOTONIC in seconds, ``t`` seconds since the job started."""

    event: str
    t: float
    mono: float
    generation: int
    because: str
    fields: Mapping[str, Any]

    def integer(self, name: str) -> int | None:
        return as_integer(self.fields.get(name))

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def integers(self, name: str) -> list[int]:
        value = self.fields.get(name)
        return [int(item) for item in value if as_integer(item) is not None] if isinstance(value, list) else []


@dataclass(frozen=True)
class Commit:
    """A committed step: when the last rank committed it (``mono``, seconds) and its global mean loss, if known.

    Each recoverable function of a script counts its steps from 1; ``function``: how many had ended before.
    """

    step: int
    mono: float
    loss: float | None
    function: int = 0


@dataclass(frozen=True)
class OutsideFault:
    """A fault caused from outside and recorded in ``faults.jsonl`` (by the benchmark).

    ``pid``: that of a killed worker; ``node``: the number of a killed node. One of them is None.
    """

    pid: int | None
    node: int | None
    mono: float


@dataclass(frozen=True)
class RunRecord:
    """Everything known about a run. ``unreadable``: the number of lines that were not JSON objects.

    ``elsewhere``: what other nodes wrote into the same directory; their clocks are not this node's. ``metrics``: the
    unchanged lines of all nodes' steps.
    """

    directory: Path
    lines: list[Line]
    elsewhere: list[Line]
    commits: list[Commit]
    metrics: list[dict[str, Any]]
    outside_faults: list[OutsideFault]
    unreadable: int


def as_integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def read_objects(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of a file, one per line, and the number of other lines. A missing file counts as empty."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    objects: list[dict[str, Any]] = []
    unreadable = 0
    for piece in raw.split(b"\n"):
        if not piece.strip():
            continue
        try:
            value = json.loads(piece)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(value, dict):
            objects.append(value)
        else:
            unreadable += 1
    return objects, unreadable


def line_of(found: Mapping[str, Any]) -> Line | None:
    """A line of the journal; None if it is not one."""
    event, mono = found.get("event"), as_seconds(found.get("mono"))
    if not isinstance(event, str) or mono is None:
        return None
    because = found.get("because")
    return Line(
        event,
        as_seconds(found.get("t")) or 0.0,
        mono,
        as_integer(found.get("generation")) or 0,
        because if isinstance(because, str) else "",
        found,
    )


def commit_of(found: Mapping[str, Any]) -> Commit | None:
    """A line of the metrics; None if it is not one."""
    step = as_integer(found.get("step"))
    mono = as_seconds(found.get("committed_mono", found.get("mono")))
    if step is None or mono is None:
        return None
    return Commit(step, mono, as_seconds(found.get("loss")), as_integer(found.get("function")) or 0)


def outside_fault_of(found: Mapping[str, Any]) -> OutsideFault | None:
    """A line of ``faults.jsonl``; None if it is not one."""
    pid, node, mono = as_integer(found.get("pid")), as_integer(found.get("node")), as_seconds(found.get("mono"))
    return None if mono is None or (pid is None and node is None) else OutsideFault(pid, node, mono)


def _commits(objects: list[dict[str, Any]]) -> list[Commit]:
    """In order. If a restart committed a step again, the later line is used: training continued from it."""
    of_steps = {(commit.function, commit.step): commit for found in objects if (commit := commit_of(found)) is not None}
    return [of_steps[each] for each in sorted(of_steps)]


def _lines(journal: Path) -> tuple[list[Line], int]:
    """The lines of one journal, and the number of unreadable ones."""
    objects, unreadable = read_objects(journal)
    lines = [line for found in objects if (line := line_of(found)) is not None]
    return lines, unreadable + len(objects) - len(lines)


def read_run(directory: Path) -> RunRecord:
    """Reads a run directory. Raises RunDirectoryError if it does not exist or is empty."""
    if not directory.is_dir():
        of_a_job = re.fullmatch(r".+:\d+", str(directory))
        why = (
            "a report is made from the files of a journal, which a running job's HOST:PORT does not have: give the "
            "directory that"
            if of_a_job
            else "give the one that"
        )
        raise RunDirectoryError(f"{directory} is not a directory; {why} `keepstep run --journal DIR` was given")
    journal = directory / "journal.jsonl"
    if not journal.is_file():
        raise RunDirectoryError(f"{directory} has no journal.jsonl; was the job started with `--journal {directory}`?")
    lines, unreadable = _lines(journal)
    elsewhere = []
    for path in sorted(directory.glob("journal.node*.jsonl")):
        theirs, bad = _lines(path)
        elsewhere += theirs
        unreadable += bad
    if not lines:
        raise RunDirectoryError(f"{journal} holds no readable line; did the job end before it started?")
    metrics, bad_metrics = read_objects(directory / "metrics.jsonl")
    of_all = list(metrics)
    for path in sorted(directory.glob("metrics.node*.jsonl")):
        theirs_metrics, bad = read_objects(path)
        of_all += theirs_metrics
        unreadable += bad
    faults, bad_faults = read_objects(directory / "faults.jsonl")
    outside = [fault for found in faults if (fault := outside_fault_of(found)) is not None]
    return RunRecord(
        directory, lines, elsewhere, _commits(metrics), of_all, outside, unreadable + bad_metrics + bad_faults
    )
