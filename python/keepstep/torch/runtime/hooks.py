"""What ``run.on`` registered, in one entry of the training function."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError

EVENTS = ("interrupt", "notice", "resize", "finish")


class Hooks:
    """Main thread."""

    def __init__(self) -> None:
        self._functions: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}

    def add(self, event: str, function: Callable[..., Any]) -> None:
        if event not in EVENTS:
            raise KeepstepError(f"run.on({event!r}): the events are {', '.join(map(repr, EVENTS))}")
        self._functions[event].append(function)

    def call(self, event: str, *args: Any) -> None:
        """Calls all functions. The first exception is raised once all were called."""
        first: Exception | None = None
        for function in list(self._functions[event]):
            try:
                function(*args)
            except Exception as error:
                if first is not None:
                    traceback.print_exc()
                first = first or error
        if first is not None:
            raise first

    def call_quietly(self, event: str, *args: Any) -> None:
        """What a function raises is printed, and changes nothing."""
        for function in list(self._functions[event]):
            try:
                function(*args)
            except (Exception, _engine.Interrupted):
                traceback.print_exc()

    def drop_all_but(self, event: str) -> None:
        for other, functions in self._functions.items():
            if other != event:
                functions.clear()

    def clear(self) -> None:
        """The function was left; the next entry registers its own."""
        for functions in self._functions.values():
            functions.clear()
