"""Why the training function was entered."""

from __future__ import annotations

from enum import Enum


class Entry(str, Enum):
    """Why the training function was entered (``run.entry``)."""

    START = "start"  #: the job began, or all processes were started again
    RECOVERY = "recovery"  #: this process survived a fault
    REPLACEMENT = "replacement"  #: this process takes the rank of a lost one
    RESIZE = "resize"  #: this process goes on in a world of another size
    JOINED = "joined"  #: this process has a rank that a resize added
    REHEARSAL = "rehearsal"  #: a spare tries its first step

    def __str__(self) -> str:
        return self.value
