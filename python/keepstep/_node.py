"""Ranks that keepstep did not start: finding this node's agent, and starting it where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from keepstep import _engine
from keepstep._errors import KeepstepError

_START_SECONDS = 30.0


def link(job: str) -> _engine.NodeLink:
    """A new link to the agent that serves `job` on this machine; starts one if there is none.

    Raises `KeepstepError` when no agent answers within 30 s.
    """
    deadline = time.monotonic() + _START_SECONDS
    started: subprocess.Popen[bytes] | None = None
    pause = 0.001
    while True:
        found = _engine.NodeLink.connect(job)
        if found is not None:
            return found
        if started is None:
            started = _start(job)
        elif started.poll() not in (None, 0):
            raise KeepstepError(f"this node's agent ended with exit code {started.returncode}; see its message above")
        elif started.poll() == 0 or time.monotonic() > deadline:
            # 0: another process was quicker. Its agent answers in a moment, or has ended since.
            started = None
        if time.monotonic() > deadline:
            raise KeepstepError(f"this node's agent did not answer within {_START_SECONDS:.0f} s (job {job})")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _start(job: str) -> subprocess.Popen[bytes]:
    # In a session of its own: a Ctrl-C ends the ranks, and it ends after them.
    return subprocess.Popen(
        [_command(), "node", "--job", job], stdin=subprocess.DEVNULL, start_new_session=True, close_fds=True
    )


def _command() -> str:
    """The command ``keepstep`` of this Python."""
    given = os.environ.get("KEEPSTEP_COMMAND")
    candidates = [given, str(Path(sys.executable).parent / "keepstep"), str(Path(sys.prefix) / "bin" / "keepstep")]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("keepstep")
    if found is None:
        raise KeepstepError(
            "the command keepstep is not installed beside this Python, so this node's agent cannot start; "
            "set KEEPSTEP_COMMAND to its path"
        )
    return found
