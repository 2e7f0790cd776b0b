"""The messages that Python code of a worker sends to its agent."""

from __future__ import annotations

from enum import IntEnum

from keepstep import _engine


class MessageType(IntEnum):
    """See src/rank/link/messages.h for each body."""

    PARKED = _engine.MESSAGE_PARKED
    RECOVERABLE = _engine.MESSAGE_RECOVERABLE
    PRELOAD = _engine.MESSAGE_PRELOAD
    PAUSED = _engine.MESSAGE_PAUSED
    CRASHED = _engine.MESSAGE_CRASHED
    INJECTED = _engine.MESSAGE_INJECTED
    NOTE = _engine.MESSAGE_NOTE
    USEFUL = _engine.MESSAGE_USEFUL
    UNFIT = _engine.MESSAGE_UNFIT
    SAVED = _engine.MESSAGE_SAVED
