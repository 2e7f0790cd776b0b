"""The command line: our own options and those of `keepstep run`, in any order, up to the script."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_STEPS = 10
LEAST_STEPS = 6

# Options that certify itself chooses for each of its jobs.
_REFUSED = {
    "--journal": "each job's journal is kept below --out",
    "--inject": "certify injects its own faults; --only picks some of them",
    "--node-rank": "certify starts all nodes, on this machine",
    "--rdzv-endpoint": "certify starts all nodes, on this machine",
    "--master-addr": "certify starts all nodes, on this machine",
    "--master-port": "certify starts all nodes, on this machine",
    "--token-file": "certify starts all nodes, on this machine, and makes the token",
    "--standalone": "certify starts all nodes, on this machine",
}
_OURS = {"--steps": True, "--out": True, "--only": True, "--timeout": True, "--list": False, "--json": False}


class OptionError(Exception):
    """The command line is wrong. The text has one line per mistake."""


@dataclass
class Options:
    """The options. ``steps`` 0: as many as the script makes. ``run``: those for `keepstep run`, as given."""

    steps: int = DEFAULT_STEPS
    out: Path = Path("certify")
    only: list[str] = field(default_factory=list)
    timeout_s: float = 600.0
    list_only: bool = False
    as_json: bool = False
    run: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)  # the values in `run`, by the option's long name
    script: list[str] = field(default_factory=list)

    def number(self, name: str, default: int) -> int:
        """A numeric option of `keepstep run`; `default` also for values that only `keepstep run` understands."""
        value = self.values.get(name, "")
        return int(value) if value.isdigit() else default


def options_of_run(command: str) -> dict[str, tuple[str, bool]]:
    """Maps every spelling to (long name, whether a value follows), from the table that `keepstep run` prints."""
    page = subprocess.run([command, "run", "--help-markdown"], check=True, capture_output=True, text=True).stdout
    return read_table(page)


def read_table(page: str) -> dict[str, tuple[str, bool]]:
    known = {}
    for found in re.finditer(r"^\| `(-[^`]*)` \|", page, re.MULTILINE):
        *others, last = found[1].split(", ")
        long, _, value = last.partition(" ")
        for name in (*others, long):
            known[name] = (long, bool(value))
    return known


def parse(words: Sequence[str], known: Mapping[str, tuple[str, bool]]) -> Options:
    """Raises OptionError with all mistakes."""
    chosen = Options()
    ours: dict[str, str] = {}
    mistakes: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        takes_value = _OURS[name] if name in _OURS else known.get(name, (name, False))[1]
        if name not in _OURS and name not in known:
            mistakes.append(f"there is no option {name}, neither of certify nor of run")
            continue
        if takes_value and not given:
            if not rest:
                mistakes.append(f"{name} needs a value")
                break
            value = rest.pop(0)
        if name in _OURS:
            ours[name] = value
            continue
        long = known[name][0]
        if long in _REFUSED:
            mistakes.append(f"{long} cannot be given: {_REFUSED[long]}")
        chosen.values[long] = value
        chosen.run += [word] if given or not takes_value else [word, value]
    if rest and rest[0] == "--":
        rest.pop(0)
    chosen.script = rest
    if not rest:
        mistakes.append("no script was given")
    mistakes += _take_ours(chosen, ours)
    if mistakes:
        raise OptionError("\n".join(mistakes))
    return chosen


def _take_ours(chosen: Options, ours: Mapping[str, str]) -> list[str]:
    mistakes = []
    steps, timeout = ours.get("--steps", str(DEFAULT_STEPS)), ours.get("--timeout", "600")
    if steps.isdigit() and (int(steps) == 0 or int(steps) >= LEAST_STEPS):
        chosen.steps = int(steps)
    else:
        mistakes.append(
            f"--steps is '{steps}'; at least {LEAST_STEPS} are needed to see a fault and what follows it (0: all that "
            "the script makes)"
        )
    try:
        chosen.timeout_s = float(timeout)
    except ValueError:
        chosen.timeout_s = 0
    if not 1 <= chosen.timeout_s <= 86400:
        mistakes.append(f"--timeout is '{timeout}'; give seconds from 1 to 86400")
    chosen.out = Path(ours.get("--out", "certify"))
    chosen.only = [name for name in ours.get("--only", "").split(",") if name]
    chosen.list_only, chosen.as_json = "--list" in ours, "--json" in ours
    return mistakes
