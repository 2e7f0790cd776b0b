"""Follows a run directory while its job runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from keepstep.bench.harness.appended import AppendedLines
from keepstep.report.journal import Commit, Line, OutsideFault, commit_of, line_of, outside_fault_of

News: TypeAlias = Line | Commit | OutsideFault


class RunFiles:
    """What all launchers of one machine write. They share a clock, so their lines have one order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journals: dict[Path, AppendedLines] = {}
        self._metrics = AppendedLines(directory / "metrics.jsonl")
        self._faults = AppendedLines(directory / "faults.jsonl")

    def poll(self) -> list[News]:
        """The new lines, in the order in which they were written."""
        news: list[News] = []
        for path in self._directory.glob("journal*.jsonl"):
            news += _read(self._journals.setdefault(path, AppendedLines(path)), line_of)
        news += _read(self._metrics, commit_of)
        news += _read(self._faults, outside_fault_of)
        return sorted(news, key=lambda one: one.mono)


def _read(file: AppendedLines, meaning: Callable[[Mapping[str, Any]], News | None]) -> list[News]:
    news = []
    for text in file.poll():
        try:
            found = json.loads(text)
        except ValueError:
            continue  # truncated by a kill
        if isinstance(found, dict) and (one := meaning(found)) is not None:
            news.append(one)
    return news
