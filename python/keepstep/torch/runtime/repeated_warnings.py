"""Warnings that a process has shown in an earlier entry of the training function are not shown again in a later one."""

from __future__ import annotations

import warnings
from typing import Any

_MAX = 1000  # that are remembered


class RepeatedWarnings:
    """Of one process; `next_entry` whenever a function is about to be entered again."""

    def __init__(self) -> None:
        self._installed = False
        self._shown: set[tuple[str, type[Warning], str, int]] = set()
        self._before: set[tuple[str, type[Warning], str, int]] = set()

    def install(self) -> None:
        """Once; a second call changes nothing."""
        if self._installed:
            return
        self._installed = True
        show = warnings.showwarning

        def show_new(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any
        ) -> None:
            key = (str(message), category, filename, lineno)
            if key in self._before:
                return
            if len(self._shown) < _MAX:
                self._shown.add(key)
            show(message, category, filename, lineno, *rest, **more)

        warnings.showwarning = show_new

    def next_entry(self) -> None:
        self._before |= self._shown
