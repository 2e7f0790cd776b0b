"""The command of a container as a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keepstep._yaml import Field
from keepstep.migrate.outcome import MigrateError, Note, Notes

_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_USUAL = {"HOME", "HOSTNAME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD", "RANDOM", "SHELL", "TMPDIR", "USER"}


@dataclass(frozen=True)
class PodCommand:
    """``body`` begins ``lines`` lines below the top of the manifest."""

    interpreter: str
    setup: list[str]  # lines before the body
    body: str
    lines: int


def pod_command(container: Field, notes: Notes) -> PodCommand:
    """Raises MigrateError if the manifest leaves the command to the image, or to a script."""
    command, arguments = (list(given.items()) if (given := container.get(key)) else [] for key in ("command", "args"))
    if not command:
        raise MigrateError(
            f"line {container.line}: {container.path} has no command; write the one of its image into the manifest"
        )
    setup: list[str] = []
    values: dict[str, str | None] = {}
    env = container.get("env")
    for each in env.items() if env else ():
        name, value = each.text("name"), each.get("value")
        values[name] = _expanded(value.scalar(), values) if value else None
        if value:
            setup.append(f"export {name}={_word(value.scalar(), values)}")
        else:
            notes.to_do.append(Note(each.line, name, "the operator looked its value up; set it before you start"))
    if folder := container.get("workingDir"):
        setup.append(f"cd {_word(folder.scalar(), values)}")
    fields = [*command, *arguments]
    words = [each.scalar() for each in fields]
    if words[0].rpartition("/")[2] not in _SHELLS:
        body = " ".join(_word(word, values) for word in words)
        return PodCommand("/bin/sh", setup, body, fields[0].line - 1)
    at = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    if at + 1 >= len(words):
        where = f"line {fields[0].line}"
        raise MigrateError(f"{where}: the container runs the script {words[-1]}; migrate that script instead")
    interpreter = words[0] if "/" in words[0] else f"/bin/{words[0]}"
    options = [*words[1:at], words[at].removesuffix("c")]
    interpreter += " -l" if "-l" in options else ""
    if others := [option for option in options if option not in ("-", "-l")]:
        setup.insert(0, f"set {' '.join(others)}")
    script = "".join(f"${{{part[2:-1]}}}" if known else part for part, known in _parts(words[at + 1], values))
    return PodCommand(interpreter, setup, script, fields[at + 1].first_line - 1)


def unset(script: str) -> set[str]:
    """Variables that the script uses and does not set."""
    used = re.findall(r"(?<!\\)\$\{?([A-Za-z_]\w*)(?!\w*:[-=?])", re.sub(r"'[^'\n]*'", "", script))
    return {*used} - {*re.findall(r"(?:\b|for |read )([A-Za-z_]\w*)(?:\+?=| in )", script)} - _USUAL


def _expanded(text: str, values: Mapping[str, str | None]) -> str:
    """With the values of Kubernetes' $(NAME), as far as the manifest has them."""

    def value(found: re.Match[str]) -> str:
        known = values.get(found[1])
        return found[0] if known is None else known

    return re.sub(r"\$\((\w+)\)", value, text)


def _parts(text: str, values: Mapping[str, str | None]) -> Iterator[tuple[str, bool]]:
    """`text` with these values, cut at each $(NAME) that the operator looked up, for which the second is true."""
    for part in re.split(r"(\$\(\w+\))", _expanded(text, values)):
        yield part, part.startswith("$(") and part[2:-1] in values


def _word(text: str, values: Mapping[str, str | None]) -> str:
    """One word for the shell, which expands only what the operator looked up."""
    return (
        "".join(f'"${{{part[2:-1]}}}"' if known else part and shlex.quote(part) for part, known in _parts(text, values))
        or "''"
    )
