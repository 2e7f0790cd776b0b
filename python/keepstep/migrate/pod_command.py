"""The command of a container as a shell script."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from keepstep.migrate.fields import Field
from keepstep.migrate.outcome import MigrateError, Note, Notes

_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_USUAL = {"HOME", "HOSTNAME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD", "RANDOM", "SHELL", "TMPDIR", "USER"}


@dataclass(frozen=True)
class PodCommand:
    """``body`` begins ``lines`` lines below the top of the manifest."""

    interpreter: str
    environment: list[str]
    body: str
    lines: int


def pod_command(container: Field, notes: Notes) -> PodCommand:
    """Raises MigrateError if the manifest leaves the command to the image."""
    fields = [each for key in ("command", "args") if (given := container.get(key)) for each in given.items()]
    if not container.get("command"):
        raise MigrateError(
            f"line {container.line}: {container.path} has no command; write the one of its image into the manifest"
        )
    environment: list[str] = []
    names: set[str] = set()
    env = container.get("env")
    for each in env.items() if env else ():
        name, value = each.text("name"), each.get("value")
        if value is None:
            notes.to_do.append(Note(each.line, name, "the operator looked its value up; set it before you start"))
            continue
        environment.append(f"export {name}={_word(value.scalar(), names)}")
        names.add(name)
    if folder := container.get("workingDir"):
        environment.append(f"cd {_word(folder.scalar(), names)}")
    words = [each.scalar() for each in fields]
    shell, flags = words[0], ""
    if shell.rpartition("/")[2] not in _SHELLS:
        return PodCommand("/bin/sh", environment, " ".join(_word(word, names) for word in words), fields[0].line - 1)
    for at, word in enumerate(words[1:-1], 1):
        flags += word[1:] if re.fullmatch(r"-\w+", word) else ""
        if "c" in flags:
            body, flags = fields[at + 1], flags.replace("c", "")
            interpreter = (shell if "/" in shell else f"/bin/{shell}") + (f" -{flags}" if flags else "")
            return PodCommand(interpreter, environment, _expanded(words[at + 1], names), body.first_line - 1)
    raise MigrateError(f"line {fields[0].line}: the container runs the script {words[-1]}; migrate that script instead")


def unset(script: str) -> set[str]:
    """Variables that the script uses and does not set."""
    used = re.findall(r"(?<!\\)\$\{?([A-Za-z_]\w*)(?!\w*:[-=?])", re.sub(r"'[^'\n]*'", "", script))
    return {*used} - {*re.findall(r"(?:\b|for |read )([A-Za-z_]\w*)(?:\+?=| in )", script)} - _USUAL


def _expanded(text: str, names: set[str]) -> str:
    """With Kubernetes' $(NAME) as the shell writes it."""
    return re.sub(r"\$\((\w+)\)", lambda found: f"${{{found[1]}}}" if found[1] in names else found[0], text)


def _word(text: str, names: set[str]) -> str:
    """One word for the shell, which expands only Kubernetes' $(NAME)."""
    parts = re.split(r"(\$\(\w+\))", text)
    return (
        "".join(f'"{_expanded(part, names)}"' if part[2:-1] in names else part and shlex.quote(part) for part in parts)
        or "''"
    )
