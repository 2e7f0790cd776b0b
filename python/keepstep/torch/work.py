"""c10d Works over engine operations, and the thread that completes their futures.

An interrupted operation completes like any other, with zeros where nothing was received (design section 7): an
exception set on a future that DDP's reducer waits for would crash the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from keepstep import _engine

DONE, INTERRUPTED, FAILED = 1, 2, 3


class KeepstepWork(Work):
    """One operation. `keep` holds what the engine reads and writes; `finish` runs once when it is complete."""

    def __init__(
        self,
        group: GroupOps,
        op: int,
        result: list[torch.Tensor],
        keep: Any,
        finish: Callable[[], None] | None = None,
        raises: bool = False,
    ) -> None:
        super().__init__()
        self._group = group
        self._op = op
        self._result = result
        self._keep = keep
        self._finish = finish
        self._raises = raises
        self._outcome = 0
        self._error = ""
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()
        self._taken = threading.Event()  # by the completer
        group.hold(op, self)

    def _complete(self, outcome: int, error: str) -> None:
        with self._lock:
            if self._outcome:
                return
            if self._finish is not None:
                self._finish()
            self._outcome = outcome
            self._error = error
            self._keep = self._finish = None
            self._group.let_go(self._op)

    def complete_future(self, outcome: int, error: str) -> None:
        """By the completer thread, once the operation is complete."""
        self._complete(outcome, error)
        self._taken.set()
        assert self._future is not None
        if outcome == FAILED:
            self._future.set_exception(RuntimeError(error))
        else:
            self._future.set_result(self._result)

    def wait(self, timeout: Any = None) -> bool:
        self.wait_quietly()
        if self._outcome == FAILED:
            raise RuntimeError(self._error)
        if self._outcome == INTERRUPTED and self._raises:
            raise _engine.Interrupted("the generation ended during a barrier")
        return True

    def wait_quietly(self) -> None:
        """Completes it without raising."""
        with self._lock:
            watched = self._future is not None
        if self._outcome:
            return
        if watched:
            # The completer takes the operation from the communicator, which then knows it no more.
            self._taken.wait()
        else:
            _, outcome, error = self._group.comm.wait(self._op)
            self._complete(outcome, error)
            self._group.comm.forget(self._op)

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
            done = bool(self._outcome)
        if done:
            if self._outcome == FAILED:
                self._future.set_exception(RuntimeError(self._error))
            else:
                self._future.set_result(self._result)
        else:
            self._group.completer.watch(self._op, self)
        return self._future

    def is_completed(self) -> bool:
        if self._outcome:
            return True
        return bool(self._group.comm.test(self._op)[1])

    def is_success(self) -> bool:
        return self._outcome in (0, DONE, INTERRUPTED)

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def exception(self) -> Any:
        return RuntimeError(self._error) if self._outcome == FAILED else None

    def source_rank(self) -> int:
        return 0


class GroupOps:
    """What a Work needs of its generation: the communicator and the completer.

    Holds every Work until its operation is complete, because torch may drop a Work whose buffers the engine still uses.
    """

    _SWEEP_AT = 256

    def __init__(self, comm: _engine.Communicator, completer: Completer) -> None:
        self.comm = comm
        self.completer = completer
        self._held: dict[int, KeepstepWork] = {}
        self._sweep_at = self._SWEEP_AT

    def hold(self, op: int, work: KeepstepWork) -> None:
        self._held[op] = work
        if len(self._held) >= self._sweep_at:
            # Works nobody waited for: completed ones are let go, the rest stays.
            for number in list(self._held):
                if self.comm.test(number)[1]:
                    self._held.pop(number, None)
            self._sweep_at = max(self._SWEEP_AT, 2 * len(self._held))

    def let_go(self, op: int) -> None:
        self._held.pop(op, None)

    def release(self) -> None:
        """The generation is over: everything is complete, and Works that outlive it must not touch its memory."""
        for work in list(self._held.values()):
            work.wait_quietly()
        self._held.clear()
        del self.comm


class Completer:
    """Sets the futures of completed operations, in a thread of its own: one per communicator."""

    def __init__(self, comm: _engine.Communicator) -> None:
        self._comm: _engine.Communicator | None = comm
        self._works: dict[int, KeepstepWork] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, op: int, work: KeepstepWork) -> None:
        assert self._comm is not None
        with self._lock:
            self._works[op] = work
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._comm,), name="keepstep-futures", daemon=True
                )
                self._thread.start()
        self._comm.watch(op)

    def _run(self, comm: _engine.Communicator) -> None:
        while True:
            completed = comm.next_completed()
            if not completed:
                return
            for op, outcome, error in completed:
                with self._lock:
                    work = self._works.pop(op)
                work.complete_future(outcome, error)

    def close(self) -> None:
        """Ends the thread; all operations must be complete (they are, once interrupted)."""
        if self._comm is not None:
            self._comm.close()
            if self._thread is not None:
                self._thread.join()
            for op, work in self._works.items():  # completed, but the thread had been told to end
                _, outcome, error = self._comm.wait(op)
                work.complete_future(outcome, error)
            self._works.clear()
            self._comm = None
