"""The interpreter that jobs use, and the versions of keepstep and torch in it."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from keepstep._errors import KeepstepError
from keepstep.doctor.finding import Finding, error, fine, warning
from keepstep.doctor.jobs import probe

LIMIT_S = 240.0  # usually some seconds, but far longer if all CPUs are busy
OLDEST = (3, 10)
NEWEST_TESTED = (3, 11)
OTHER_PYTHON = "set KEEPSTEP_PYTHON to an interpreter that fits"


class Probe:
    """Inspects an interpreter in a separate process: importing torch takes seconds, and may end the process."""

    def __init__(self, python: str) -> None:
        self.python = python
        with open(probe.__file__, encoding="utf-8") as source:
            words = [python, "-c", source.read()]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as why:
            raise KeepstepError(f"{python} cannot be started: {why}") from None

    def answer(self) -> dict[str, Any]:
        """Waits for the answer. Raises KeepstepError if the process dies, hangs, or prints something else."""
        try:
            said, complaints = self._process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise KeepstepError(f"{self.python} did not import torch within {LIMIT_S:.0f} s") from None
        lines = said.splitlines()
        try:
            found = json.loads(lines[-1]) if lines and self._process.returncode == 0 else None
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        last = next((line for line in reversed(lines) if line.startswith(probe.ABOUT_TO)), "")
        raise KeepstepError(
            f"{self.python} ended {_how(self._process.returncode)}{' when it was ' if last else ''}{last}"
            f"{': ' if complaints.strip() else ''}{complaints.strip()[-500:]}"
        )

    def end(self) -> None:
        """Ends the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    return f"by {signal.Signals(-code).name}" if -code in signal.valid_signals() else f"by signal {-code}"


def python(found: dict[str, Any]) -> list[Finding]:
    text = f"{found['version']}, {found['python']}"
    version = tuple(int(part) for part in found["version"].split(".")[:2])
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST_TESTED))
    if version < OLDEST:
        return [error("Python", f"{text}: keepstep needs {oldest} or newer", OTHER_PYTHON)]
    if version > NEWEST_TESTED:
        return [warning("Python", f"{text}: keepstep is tested with {oldest} to {newest} only", OTHER_PYTHON)]
    return [fine("Python", text)]


def package(found: dict[str, Any], engine_version: str, command: str) -> list[Finding]:
    """`engine_version`: the version of `command`, the keepstep command."""
    for name in ("keepstep", "keepstep._engine"):
        if name in found["problems"]:
            return [
                error(
                    "keepstep",
                    f"{found['python']} cannot import {name}: {found['problems'][name]}",
                    f"install keepstep for this interpreter, or {OTHER_PYTHON}",
                )
            ]
    version, file = found["keepstep"]["version"], found["keepstep"]["file"]
    if version != engine_version:
        return [
            error(
                "keepstep",
                f"the command {command} is version {engine_version}, the package {file} is version {version}",
                "install both from one build, or set KEEPSTEP_PYTHON (KEEPSTEP_COMMAND) to the one that belongs to the "
                "other",
            )
        ]
    return [fine("keepstep", f"{version}, command {command}")]


def torch(found: dict[str, Any]) -> list[Finding]:
    if "torch" in found["problems"]:
        return [
            error(
                "torch",
                f"{found['python']} cannot import torch: {found['problems']['torch']}",
                f"install it for this interpreter, or {OTHER_PYTHON}",
            )
        ]
    about = found["torch"]
    if not about["distributed"]:
        return [error("torch", f"{about['version']} is built without torch.distributed", "install an official build")]
    problem = found["problems"].get("keepstep.torch", "")
    if problem:  # keepstep.torch.versions explains why this torch is too old
        return [error("torch", problem.removeprefix("KeepstepError: "))]
    built = f"CUDA {about['cuda']}, NCCL {about['nccl'] or 'not told'}" if about["cuda"] else "for CPUs only"
    return [fine("torch", f"{about['version']}, built {'with ' if about['cuda'] else ''}{built}")]
