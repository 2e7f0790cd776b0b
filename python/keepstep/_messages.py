"""Numbers of the messages a worker sends to its agent; the same as in src/worker/messages.h."""

from __future__ import annotations

from enum import IntEnum


class MessageType(IntEnum):
    """See src/worker/messages.h for each body."""

    PARKED = 2
    RECOVERABLE = 3
    PRELOAD = 4
    PAUSED = 9
    FAULT = 10
    CRASHED = 12
    INJECTED = 13
    NOTE = 18
    USEFUL = 19
    UNFIT = 20
    SAVED = 22
