"""Threads besides the training loop that use process groups, and what a new generation means for them.

The loop raises the interruption in the main thread. A thread that user code started (``threading.Thread``, an executor;
``dcp.async_save`` has one) gets `_engine.Interrupted` from its current or next collective. A thread that still works
for the previous generation must not call the new one's collectives: it would be mistaken for the thread that the new
entry starts. It gets the exception once, too.

Threads that libraries start outside Python (autograd's device threads) count as the main thread, whose work they do.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

from keepstep import _engine

# Where a thread of an executor or a queue is while it has nothing to do.
_WAITING_ROOMS = ("threading.py", "queue.py", "concurrent/futures/thread.py", "multiprocessing/pool.py")


def in_side_thread() -> bool:
    """Whether this is a thread that Python code started, and not the completer of our own futures."""
    if threading.get_ident() == threading.main_thread().ident:
        return False
    thread = threading.current_thread()
    return not isinstance(thread, threading._DummyThread) and thread.name != "keepstep-futures"


class _Seat:
    """A thread's part in a generation; ends with the thread."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.overtaken = False  # it worked for a generation that is over


class SideThreads:
    """Which threads took part in the current generation. Thread-safe."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._seats: set[_Seat] = set()
        self._lock = threading.Lock()

    def enter(self, what: str) -> None:
        """Before each collective of a side thread. Interrupted: what it works for is over."""
        seat: _Seat | None = getattr(self._own, "seat", None)
        if seat is None:
            seat = self._own.seat = _Seat()
        if seat.overtaken:
            seat.overtaken = False
            raise _engine.Interrupted(
                f"{what}: the generation that this thread worked for ended. A thread that is to serve later entries of "
                "the training function, too, must be started by each of them, or its work be given to an executor"
            )
        with self._lock:
            self._seats.add(seat)

    def told(self) -> None:
        """This thread gets the exception now; it may work for the next generation afterwards."""
        seat: _Seat | None = getattr(self._own, "seat", None)
        if seat is not None:
            with self._lock:
                self._seats.discard(seat)

    def leave_generation(self) -> None:
        """Called by the main thread after the generation. Idle threads of an executor have nothing to leave."""
        frames = sys._current_frames()
        with self._lock:
            seats, self._seats = self._seats, set()
        for seat in seats:
            seat.overtaken = _at_work(frames.get(seat.ident))


def _at_work(frame: FrameType | None) -> bool:
    while frame is not None:
        if not frame.f_code.co_filename.replace("\\", "/").endswith(_WAITING_ROOMS):
            return True
        frame = frame.f_back
    return False
