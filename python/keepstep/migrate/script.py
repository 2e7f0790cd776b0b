"""Rewrites the launches in a shell script. All else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from keepstep.migrate import accelerate_options, torchrun_options
from keepstep.migrate.launch import Given, Launch, Plan, Surroundings, plan
from keepstep.migrate.outcome import MigrateError, Migration, Note, Notes
from keepstep.migrate.shell import Word, commands

LAUNCHERS = "torchrun, hyperpodrun, python -m torch.distributed.run, accelerate launch"

_MODULES = {
    "torch.distributed.run": "torchrun",
    "hyperpod_elastic_agent.run": "hyperpodrun",
    "accelerate.commands.launch": "accelerate launch",
}
_ONLY_NAME_IT = {"echo", "printf", "which", "type", "hash", "command", "pip", "pip3", "module", "alias"}
_MOST_STEPS = 8  # from one variable to the next
_DECLARE = {"export", "declare", "typeset", "local", "readonly"}


@dataclass
class _Found:
    launch: Launch
    words: list[Word]  # of the launcher
    plan: Plan
    new: str  # what the launcher becomes, without options


def rewrite(text: str, around: Surroundings | None = None, plain_python: bool = False) -> Migration:
    """The script with its launches replaced. With `plain_python`, `python SCRIPT` is a launch too.

    Raises MigrateError if there is none.
    """
    script = _Script(text, around or Surroundings(), plain_python)
    found = list(script.launches())
    if not found:
        raise MigrateError(f"no launch found; keepstep migrate knows {LAUNCHERS}")
    edits: dict[tuple[int, int], str] = {}
    notes = Notes()
    for each in found:
        edits |= _edits(text, each)
        notes.add(each.plan.notes)
    return Migration(_apply(text, edits), notes)


def _edits(text: str, found: _Found) -> dict[tuple[int, int], str]:
    """New text for parts of the old one, by their first and last position; "" leaves a word out."""
    new = ["env", *found.plan.environment] if found.plan.environment else []
    edits = {(found.words[0].start, found.words[-1].end): " ".join([*new, found.new, *found.plan.options])}
    for given in found.plan.drop:
        edits |= {(word.start, word.end): "" for word in given.words}
    for given, name in found.plan.rename:
        start = given.words[0].start + text[given.words[0].start :].index("-")
        edits[start, start + len(given.spelled)] = name
    return edits


def _apply(text: str, edits: dict[tuple[int, int], str]) -> str:
    for (start, end), new in sorted(edits.items(), reverse=True):
        if new:
            text = text[:start] + new + text[end:]
            continue
        line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        before, after = text[line_start:start], text[end : line_end if line_end >= 0 else len(text)]
        if not before.strip() and after.strip() in ("", "\\") and line_end >= 0:
            text = text[:line_start] + text[line_end + 1 :]  # nothing else is in this line
        else:
            text = (
                text[:start].rstrip(" \t") + text[end:] if before.strip() else text[:start] + text[end:].lstrip(" \t")
            )
    return text


class _Script:
    def __init__(self, text: str, around: Surroundings, plain_python: bool) -> None:
        self._text, self._around, self._plain_python = text, around, plain_python
        self._values: dict[str, list[Word]] = {}
        self._seen: set[int] = set()  # where launchers begin
        for command in commands(text):
            words = [word for word in command.words if word.text not in _DECLARE and not word.text.startswith("-")]
            for word in words:
                if not (pair := word.assignment):
                    break
                self._values.setdefault(pair[0], []).append(pair[1])

    def launches(self) -> Iterator[_Found]:
        """Those that are used come first, because there it shows whether srun starts them."""
        for assigned in (False, True):
            for command in commands(self._text):
                yield from self._in_words(command.words, [], assigned)

    def _line(self, word: Word) -> int:
        return self._text.count("\n", 0, word.start) + 1

    def _assigned(self, word: Word) -> list[Word] | None:
        """The words of the values that the script gives to this variable; None if it gives it none."""
        values = self._values.get(word.variable or "")
        if values is None:
            return None
        found: list[Word] = []
        for value in values:
            start, end = value.inside or (value.start, value.end)
            for command in commands(self._text, start, end):
                found += [each for each in command.words if each.variable != word.variable]
        return found

    def _literal(self, value: str) -> str:
        """What `value` stands for, as far as the script gives its variable one value."""
        word = Word(0, value)
        for _ in range(_MOST_STEPS):
            values = self._values.get(word.variable or "", [])
            word = values[0] if len(values) == 1 else word
        return word.text

    def _in_words(self, words: list[Word], prefix: list[Word], assigned: bool) -> Iterator[_Found]:
        if words and words[0].text in _ONLY_NAME_IT:
            return
        for at, word in enumerate(words):
            pair = word.assignment
            if not pair and (found := self._launch(words, at, prefix, [], _MOST_STEPS)):
                yield from [found] if found.words[0].start not in self._seen else []
                self._seen.add(found.words[0].start)
                return
            if pair and not assigned:
                continue
            if inside := (pair[1] if pair else word).inside:
                for command in commands(self._text, *inside):
                    yield from self._in_words(command.words, prefix + words[:at], assigned)

    def _launch(self, words: list[Word], at: int, prefix: list[Word], tail: list[Word], steps: int) -> _Found | None:
        """The launch whose launcher begins at words[at], or is in what the variable there stands for.

        `tail`: the words that follow `words`. `steps`: from variable to variable.
        """
        rest, before = words[at:], prefix + words[:at]
        if head := self._launcher(rest):
            return self._read(*head, before, rest[len(head[1]) :] + tail)
        inner = (self._assigned(words[at]) or []) if steps else []
        found = (self._launch(inner, index, before, rest[1:] + tail, steps - 1) for index in range(len(inner)))
        return next(filter(None, found), None)

    def _launcher(self, words: list[Word]) -> tuple[str, list[Word], str] | None:
        """Its kind, its words, and what `keepstep run` is in the same folder; None if these words begin otherwise."""
        folder, _, name = self._literal(words[0].raw).rpartition("/")
        command = f"{folder}/keepstep run" if folder else "keepstep run"
        if name in ("torchrun", "hyperpodrun"):
            return name, words[:1], command
        if name == "accelerate" and [word.text for word in words[1:2]] == ["launch"]:
            return "accelerate launch", words[:2], command
        is_python = re.fullmatch(r"python[\d.]*", name) is not None
        if not is_python and not (words[0].variable and "PY" in words[0].raw.upper()):
            return None
        at = 1
        while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
            at += 1  # -u
        module = words[at + 1].text if words[at : at + 1] and words[at].text == "-m" and words[at + 1 :] else ""
        if module in _MODULES:
            return _MODULES[module], words[: at + 2], command if is_python else "keepstep run"
        return ("python", words[:at], command) if self._plain_python and is_python and words[at:] else None

    def _read(self, kind: str, launcher: list[Word], new: str, before: list[Word], rest: list[Word]) -> _Found:
        under_srun = any(word.text.rpartition("/")[2] == "srun" for word in before)
        launch = Launch(kind, self._line(launcher[0]), under_srun)
        unread = [] if kind == "python" else self._options(launch, rest)
        planned = plan(launch, replace(self._around, has_token="KEEPSTEP_TOKEN" in self._text))
        where = "; keepstep has to be installed there" if "/" in new else ""
        said = " ".join(word.text for word in launcher)
        planned.notes.changed.insert(0, Note(launch.line, said, f"now {new}" + where))
        for word in unread:
            says = "this file does not set it; options in it are not migrated"
            planned.notes.to_do.append(Note(self._line(word), word.raw, says))
        return _Found(launch, launcher, planned, new)

    def _options(self, launch: Launch, rest: list[Word]) -> list[Word]:
        """Reads the options before the training script into `launch`. Returns words that may hold more of them."""
        words, unread, expanded = list(rest), [], set()
        while words:
            word = words.pop(0)
            if not word.text.startswith("-") or word.text in ("-", "--"):
                inner = None if word.variable in expanded else self._assigned(word)
                expanded.add(word.variable)
                if inner is not None and (not inner or inner[0].text.startswith("-")):
                    words = inner + words
                elif inner is None and word.variable and any(each.text.endswith(".py") for each in words):
                    unread.append(word)
                else:
                    break  # the training script
                continue
            found = self._known(launch.kind, word.text.partition("=")[0])
            name, takes_value = found or (word.text, False)
            value = word.raw.partition("=")[2]
            mine = [word]
            if takes_value and "=" not in word.raw and words:
                mine.append(words.pop(0))
                value = mine[1].raw
            launch.given.append(Given(name, value, self._literal(value), self._line(word), tuple(mine)))
        return unread

    @staticmethod
    def _known(kind: str, option: str) -> tuple[str, bool] | None:
        if kind == "accelerate launch":
            return accelerate_options.known(option)
        return torchrun_options.known(option, kind == "hyperpodrun")
