"""HyperPod's `logMonitoringConfiguration` as rules for `keepstep run --log-rules`. Pure.

What its rules mean is from `logagent/log_agent.py` of hyperpod-elastic-agent 1.1.3: patterns are matched at the start
of a line, on standard output of local rank 0 of each node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from keepstep.migrate.fields import Field
from keepstep.migrate.outcome import Note, Notes

_OPERATORS = {"gt": ">", "lt": "<", "gteq": ">=", "lteq": "<="}
_KEYS = {
    "name", "logPattern", "expectedStartCutOffInSeconds", "expectedRecurringFrequencyInSeconds", "metricThreshold",
    "operator", "metricEvaluationDataPoints", "stopPattern", "faultOnMatch",
}  # fmt: skip
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9]|[*+?}]\+|\\Z")


def log_rules(configuration: Field, ranks: Sequence[int], notes: Notes) -> str:
    """The file for --log-rules; "" if no rule has a counterpart. `ranks`: the local rank 0 of each node."""
    rules = [rule for entry in configuration.items() for rule in _rules(entry, notes)]
    watched = f"    ranks: [{', '.join(map(str, ranks))}]\n"
    return "rules:\n" + "".join(rule + watched + "    action: replace\n" for rule in rules) if rules else ""


def _rules(entry: Field, notes: Notes) -> list[str]:
    """A rule of theirs is up to three of ours: about times, about a number, and about a line that must not appear."""
    name, pattern = entry.text("name"), entry.text("logPattern")
    says = Note(entry.line, f"log rule {name!r}", "")

    def missing(why: str) -> list[str]:
        notes.missing.append(Note(says.line, says.name, why))
        return []

    for key in entry.keys() - _KEYS:
        notes.missing.append(Note(entry.line, f"log rule {name!r}", f"keepstep migrate does not know its {key}"))
    patterns = [pattern, entry.text("stopPattern")]
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return missing(f"left out: its pattern is no regular expression: {error}")
    if any(_NOT_IN_RE2.search(each) for each in patterns):
        return missing("left out: keepstep's patterns (RE2) know no lookaround and no reference to a group")
    until = f"    until: {_quoted(_from_start(patterns[1]))}\n" if patterns[1] else ""
    pattern_line = f"    pattern: {_quoted(_from_start(pattern))}\n"
    found = []
    names = {"first_within": "expectedStartCutOffInSeconds", "every": "expectedRecurringFrequencyInSeconds"}
    times = {ours: seconds for ours, theirs in names.items() if (seconds := entry.number(theirs, 0))}
    if times:
        found.append(("", "".join(f"    {key}: {seconds}\n" for key, seconds in times.items())))
    operator, threshold = entry.text("operator"), entry.text("metricThreshold")
    if operator and threshold and groups:
        if operator in _OPERATORS:
            count = f"    count: {entry.text('metricEvaluationDataPoints') or 1}\n"
            found.append((" (number)", f"    threshold: '{_OPERATORS[operator]} {threshold}'\n{count}"))
        else:
            missing(f"keepstep has no threshold for operator {operator}")
            if not found:
                return []
    if entry.text("faultOnMatch").lower() == "true":
        found.append((" (line)", ""))
    if not found:
        return missing(
            "left out: without a time, a number with operator and threshold, or faultOnMatch it does nothing"
        )
    notes.changed.append(Note(says.line, says.name, "a rule of --log-rules: replaces the rank that breaks it"))
    several = len(found) > 1
    return [
        f"  - name: {_quoted(name + (suffix if several else ''))}\n{pattern_line}{checks}{until}"
        for suffix, checks in found
    ]


def _from_start(pattern: str) -> str:
    """The pattern for a search that matches where `pattern` matches at the start of a line."""
    return pattern if pattern.startswith(("^", ".*")) and "|" not in pattern else f"^(?:{pattern})"


def _quoted(text: str) -> str:
    """A YAML scalar."""
    return json.dumps(text) if re.search(r"[\n\t]", text) else "'" + text.replace("'", "''") + "'"
