"""Finds this node's agent, or starts one, for ranks that keepstep did not start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from keepstep import _engine
from keepstep._errors import KeepstepError


def link(job: str, addresses: str = "", place: int = 0) -> _engine.NodeLink:
    """A new link to the agent that serves `job` on this machine; starts an agent if there is none. `addresses`: of all
    nodes' agents, numeric, with commas, if there are several; `place`: of this node's."""
    try:
        return _engine.NodeLink.connect_or_start(job, _command(), addresses, place)
    except RuntimeError as error:
        raise KeepstepError(str(error)) from None


def _command() -> str:
    """The ``keepstep`` command that belongs to this Python."""
    given = os.environ.get("KEEPSTEP_COMMAND")
    beside = [str(Path(sys.executable).parent / "keepstep"), str(Path(sys.prefix) / "bin" / "keepstep")]
    return given or next((path for path in beside if os.access(path, os.X_OK)), "keepstep")
