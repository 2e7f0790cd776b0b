"""The folder of a build in progress, PREFIX.building: what it builds, from what, and which parts are done.

`plan.json` is written first. A later build continues only if it has the same options and the same files (size and
modification time); anything else is refused, so no corpus is assembled from two different builds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import asdict
from typing import Any

from keepstep._errors import KeepstepError
from keepstep.data.builder.inputs import InputFile
from keepstep.data.builder.options import BuildOptions
from keepstep.data.builder.part import write_json
from keepstep.data.builder.tokenizer import Encoding

VERSION = 1


def of(options: BuildOptions, encoding: Encoding, files: list[InputFile]) -> dict[str, Any]:
    """Everything that the corpus depends on."""
    return {
        "version": VERSION,
        "options": {
            **asdict(encoding),
            "field": options.field,
            "format": options.format,
            "on_error_skip": options.skip,
        },
        "inputs": [[os.path.abspath(file.path), file.size, file.mtime_ns] for file in files],
    }


def _difference(old: Any, new: dict[str, Any]) -> str | None:
    if not isinstance(old, dict) or old.get("version") != VERSION:
        return "another version of keepstep began it"
    for name, value in new["options"].items():
        if old["options"].get(name) != value:
            return f"{name} was {old['options'].get(name)!r}, now {value!r}"
    before = {path: (size, changed) for path, size, changed in old["inputs"]}
    for path, size, changed in new["inputs"]:
        if path not in before:
            return f"'{path}' is new among the input"
        if before[path] != (size, changed):
            return f"'{path}' has changed"
    if old["inputs"] != new["inputs"]:
        gone = set(before) - {path for path, _, _ in new["inputs"]}
        return f"'{min(gone)}' is missing among the input" if gone else "the input comes in another order"
    return None


class Building:
    """The folder, locked by this process."""

    def __init__(self, prefix: str) -> None:
        self.folder = f"{prefix}.building"
        self._lock = -1
        self.opened = False  # opened by this process, so finished parts in it belong to this build

    def open(self, plan: dict[str, Any], force: bool) -> bool:
        """Creates the folder, or continues one with the same plan. Returns whether it existed. KeepstepError: it
        belongs to another build, or is in use."""
        os.makedirs(self.folder, exist_ok=True)
        self._lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KeepstepError(f"another build writes '{self.folder}' now") from None
        path = os.path.join(self.folder, "plan.json")
        try:
            with open(path, encoding="utf-8") as file:
                old = json.load(file)
        except FileNotFoundError:
            old = None
        except ValueError:
            old = {}
        if old is not None:
            different = _difference(old, plan)
            if different is None:
                self.opened = True
                return True
            if not force:
                raise KeepstepError(
                    f"'{self.folder}' holds an unfinished different build: {different}. Repeat its command to "
                    "go on, --force to start over, or remove the folder"
                )
        for name in os.listdir(self.folder):
            if name != "lock":
                os.remove(os.path.join(self.folder, name))
        write_json(path, plan)
        self.opened = True
        return False

    def remove(self) -> None:
        self.opened = False
        shutil.rmtree(self.folder)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
