"""A script's side effects besides training: files it writes, programs it starts, connections it makes.

Used only by ``keepstep certify``, to find what a recovery does twice. It relies on Python's audit hooks, so it does not
see what a library does in C or C++ (``torch.save`` is seen: `keepstep.torch.integrity.witness`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# Written by Python, torch and the system, not by the script.
_NOT_THE_SCRIPTS = ("/proc/", "/dev/", "/sys/", sys.prefix + "/", sys.base_prefix + "/")
_NOT_THE_SCRIPTS_PARTS = ("__pycache__", "/.cache/", "torchinductor_", "/.triton/")

_tell: Callable[[str, str], None] | None = None


def _path(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    if not isinstance(value, str | os.PathLike):
        return None  # an open descriptor
    path = os.path.abspath(value)
    if path.startswith(_NOT_THE_SCRIPTS) or any(part in path for part in _NOT_THE_SCRIPTS_PARTS):
        return None
    return path


def _seen(event: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """What was done, and to what; None if nobody else could notice it."""
    path: str | None
    if event == "open":
        flags = args[2] if isinstance(args[2], int) else 0
        if not flags & _WRITES or (path := _path(args[0])) is None:
            return None
        return ("appends to" if flags & os.O_APPEND else "writes"), path
    if event in ("os.remove", "os.rmdir") and (path := _path(args[0])) is not None:
        return "removes", path
    if event == "os.rename" and (path := _path(args[1])) is not None:
        return "writes", path
    if event == "subprocess.Popen":
        return "starts", str(args[0])
    if event == "socket.connect" and isinstance(args[1], tuple) and len(args[1]) >= 2:
        return "connects to", f"{args[1][0]}:{args[1][1]}"
    return None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    tell = _tell
    if tell is None or event not in _EVENTS:
        return
    found = _seen(event, args)
    if found is not None:
        tell(*found)


_EVENTS = frozenset({"open", "os.remove", "os.rmdir", "os.rename", "subprocess.Popen", "socket.connect"})


def watch(tell: Callable[[str, str], None]) -> None:
    """From now on calls `tell(what, to_what)` before each side effect, on any thread. Works once per process: an audit
    hook cannot be removed."""
    global _tell
    if _tell is None:
        _tell = tell
        sys.addaudithook(_hook)
