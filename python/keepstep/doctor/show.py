"""Shows findings, to people as they arrive, and to programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.status import Status
from rich.text import Text

from keepstep._console import Console, shown
from keepstep.doctor import peers
from keepstep.doctor.finding import Finding

_STYLES = {"fine": "green", "warning": "yellow", "error": "bold red"}
_INDENT = "  "


def verdict(findings: Sequence[Finding]) -> str:
    broken = list(dict.fromkeys(finding.check for finding in findings if finding.level == "error"))
    count = sum(finding.level == "warning" for finding in findings)
    notes = f"{count} {'thing' if count == 1 else 'things'} to know"
    if broken:
        what = "run keepstep jobs with its peers" if set(broken) <= set(peers.CHECKS) else "run keepstep jobs"
        return f"This machine cannot {what} yet: {', '.join(broken)}{f'; and {notes}' if count else ''}."
    return f"This machine can run keepstep jobs{f'; {notes}' if count else ''}."


def as_json(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    return {
        "can_run": all(finding.level != "error" for finding in findings),
        "verdict": verdict(findings),
        "version": version,
        "checks": [
            {"check": each.check, "level": each.level, "found": each.found, "advice": each.advice} for each in findings
        ],
    }


def print_json(findings: Sequence[Finding], version: str) -> None:
    print(json.dumps(as_json(findings, version), indent=2))


class Page:
    """Prints each finding as it arrives, and on a terminal also what is being checked."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = Status("", console=console) if console.is_terminal else None

    def __enter__(self) -> Page:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, what: str) -> None:
        if self._status is not None:
            self._status.update(shown(f"checking {what} ...", "dim"))

    def add(self, finding: Finding) -> None:
        line = Text.assemble(
            shown(f"{finding.level:<8}", _STYLES[finding.level]), shown(f"{finding.check}: {finding.found}", "")
        )
        self._console.print(line, soft_wrap=True)
        if finding.advice:
            self._console.print(shown(f"{' ' * 8}-> {finding.advice}", ""), soft_wrap=True)

    def end(self, findings: Sequence[Finding]) -> None:
        worst = next((level for level in ("error", "warning") if any(f.level == level for f in findings)), "fine")
        self._console.print(shown(verdict(findings), _STYLES[worst]), soft_wrap=True)
