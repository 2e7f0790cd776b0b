"""How the demo is shown while it runs: one live screen on a terminal, otherwise a line per event."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.live import Live

from keepstep._console import Console
from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.drawing import Frame

REDRAW_S = 0.2  # between two frames: the ranks need the CPU more
REDRAW_IN_RECOVERY_S = 0.05
CLOCK_S = 1.0


class Show(Protocol):
    """Call `update` after every possible change; frequent calls are cheap."""

    def update(self, act: Act, *, changed: bool) -> None: ...


@contextmanager
def open_show(title: str, acts: Sequence[Act], console: Console) -> Iterator[Show]:
    if not _can_show(console):
        console.print(title)
        yield _PlainShow(console)
        return
    # rich's own thread would draw without changes, and hold the GIL while the journal is read.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield _LiveShow(live, title, acts)


def _can_show(console: Console) -> bool:
    refused = any(os.environ.get(name) for name in ("NO_COLOR", "CI"))
    terminal = console.file.isatty() and not console.is_dumb_terminal
    return terminal and not refused and console.encoding.startswith("utf")


class _LiveShow:
    def __init__(self, live: Live, title: str, acts: Sequence[Act]) -> None:
        self._live = live
        self._title = title
        self._acts = acts
        self._began = time.monotonic()
        self._drawn = 0.0
        self._changed = True

    def update(self, act: Act, *, changed: bool) -> None:
        now = time.monotonic()
        self._changed = self._changed or changed
        recovery = act.scene.recovery if act.scene is not None else None
        recovering = recovery is not None and not recovery.complete
        wait_s = (REDRAW_IN_RECOVERY_S if recovering else REDRAW_S) if self._changed else CLOCK_S
        if now - self._drawn < wait_s and not act.result:
            return
        self._drawn, self._changed = now, False
        self._live.update(Frame(self._title, self._acts, now - self._began), refresh=True)


class _PlainShow:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._act: Act | None = None
        self._told = 0  # number of the act's events already printed

    def update(self, act: Act, *, changed: bool) -> None:
        if act is not self._act:
            self._act, self._told = act, 0
            self._print(f"\n{act.title}")
        scene = act.scene
        if scene is not None:
            for event in scene.events[self._told :]:
                self._print(f"{event.t:7.2f} s  {event.text}")
            self._told = len(scene.events)
        if act.result:
            self._print(f"           {act.result}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
