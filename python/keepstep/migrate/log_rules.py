"""HyperPod's `logMonitoringConfiguration` as rules for `keepstep run --log-rules`. Pure.

What its rules mean is from `logagent/log_agent.py` of hyperpod-elastic-agent 1.1.3: patterns are matched at the start
of a line, on standard output of local rank 0 of each node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from keepstep._yaml import Field
from keepstep.migrate.outcome import Note, Notes

_OPERATORS = {"gt": ">", "lt": "<", "gteq": ">=", "lteq": "<="}
_KEYS = {
    "name", "logPattern", "expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds", "metricThreshold",
    "operator", "metricEvaluationDataPoints", "stopPattern", "faultOnMatch",
}  # fmt: skip
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9]|[*+?}]\+|\\Z")


def log_rules(configuration: Field, ranks: Sequence[int], notes: Notes) -> str:
    """The file for --log-rules; "" if no rule has a counterpart. `ranks`: the local rank 0 of each node."""
    found: dict[str, str] = {}
    for entry in configuration.items():
        for name, checks in _rules(entry, notes):
            found[name if name not in found else f"{name} ({len(found)})"] = checks
    same = f"    ranks: [{', '.join(map(str, ranks))}]\n    action: replace\n"
    rules = "".join(f"  - name: {_quoted(name)}\n{checks}{same}" for name, checks in found.items())
    return rules and f"rules:\n{rules}"


def _rules(entry: Field, notes: Notes) -> list[tuple[str, str]]:
    """The names and lines of up to three rules: about times, about a number, and about a line that must not appear."""
    name, pattern, until = (entry.text(key) for key in ("name", "logPattern", "stopPattern"))

    def note(section: list[Note], says: str) -> list[tuple[str, str]]:
        section.append(Note(entry.line, f"log rule {name!r}", says))
        return []

    for key in sorted(entry.keys() - _KEYS):
        note(notes.missing, f"keepstep migrate does not know its {key}")
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return note(notes.missing, f"left out: its logPattern is no regular expression: {error}")
    if _NOT_IN_RE2.search(pattern) or _NOT_IN_RE2.search(until):
        return note(notes.missing, "left out: RE2 has no lookaround, no reference to a group, and no \\Z")
    names = {"first_within": "expectedStartCutOffInSeconds", "every": "expectedRecurringFrequencyInSeconds"}
    times = [f"    {ours}: {seconds}\n" for ours, theirs in names.items() if (seconds := entry.number(theirs, 0))]
    operator, threshold = entry.text("operator"), entry.text("metricThreshold")
    found = {"": "".join(times)} if times else {}
    if operator in _OPERATORS and threshold and groups:
        count = entry.number("metricEvaluationDataPoints", 1)
        found[" (number)"] = f"    threshold: '{_OPERATORS[operator]} {threshold}'\n    count: {count}\n"
    elif operator and operator not in _OPERATORS:
        note(notes.missing, f"keepstep has no threshold for operator {operator}")
    if entry.text("faultOnMatch").lower() == "true":
        found[" (line)"] = ""
    if not found:
        return note(notes.missing, "left out: it has no time, no number that keepstep compares, and no faultOnMatch")
    note(notes.changed, "a rule of --log-rules: replaces the rank that breaks it")
    patterns = f"    pattern: {_quoted(_from_start(pattern))}\n"
    patterns += f"    until: {_quoted(_from_start(until))}\n" if until else ""
    title = (name or "rule")[:80]
    return [(title + (suffix if len(found) > 1 else ""), patterns + checks) for suffix, checks in found.items()]


def _from_start(pattern: str) -> str:
    """The pattern for a search that matches where `pattern` matches at the start of a line."""
    return pattern if pattern.startswith(("^", ".*")) and "|" not in pattern else f"^(?:{pattern})"


def _quoted(text: str) -> str:
    """A YAML scalar."""
    return json.dumps(text) if re.search(r"[\n\t]", text) else "'" + text.replace("'", "''") + "'"
