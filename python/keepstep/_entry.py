"""Why the training function was entered."""

from __future__ import annotations

from enum import Enum


class Entry(str, Enum):
    """Why the training function was entered (``run.entry``)."""

    START = "start"  #: the job started, or all processes were restarted
    RECOVERY = "recovery"  #: this process survived a fault
    REPLACEMENT = "replacement"  #: this process takes the rank of a lost one
    RESIZE = "resize"  #: this process continues in a world of another size
    JOINED = "joined"  #: a resize added this process's rank
    REHEARSAL = "rehearsal"  #: a spare rehearses its first step

    def __str__(self) -> str:
        return self.value
