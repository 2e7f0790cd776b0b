"""c10d Works over engine operations, and the thread that completes their futures.

In a rank of ``keepstep run`` an interrupted operation completes like any other, with zeros where nothing was received
(interruption.md): an exception set on a future that DDP's reducer waits for would crash the process. Which operations
raise when they are interrupted is the host's to say (hosts.py). Any thread may wait for a Work, also after its
generation ended: the operation is complete then, as an interrupted one.
"""

from __future__ import annotations

import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

from keepstep import _engine

DONE, INTERRUPTED, FAILED = 1, 2, 3

_made = threading.local()


class KeepstepWork(Work):
    """One operation. `keep` holds what the engine reads and writes; `finish` runs once when it is complete.

    `interruption` gives what to raise if it is interrupted; None, or a None from it: nothing.
    """

    def __init__(
        self,
        group: GroupOps,
        op: int,
        result: list[Any],
        keep: Any,
        finish: Callable[[], None] | None = None,
        interruption: Callable[[], BaseException | None] | None = None,
    ) -> None:
        super().__init__()
        self._group = group
        self._op = op
        self._result = result
        self._keep = keep
        self._finish = finish
        self._interruption = interruption
        self._outcome = 0
        self._error = ""
        self._link_broke = False
        self._source = 0
        self.missing: list[int] = []  # ranks in the group that had not arrived in time
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()
        self._taken = threading.Event()  # by the completer
        group.hold(op, self)
        _made.work = self

    def _complete(self, outcome: int, error: str, source: int, missing: list[int]) -> None:
        with self._lock:
            if self._outcome:
                return
            try:
                if self._finish is not None:
                    self._finish()
            except Exception as failure:  # must not end the thread that completes the others, too
                outcome, error = FAILED, f"the result could not be put in place: {type(failure).__name__}: {failure}"
            self._error = error
            self._link_broke = outcome == FAILED and self._group.link_broke()
            self._source = source
            self.missing = missing
            self._keep = self._finish = None
            self._group.cut_short |= outcome == INTERRUPTED
            self._outcome = outcome
            self._group.let_go(self._op)

    def complete_future(self, outcome: int, error: str, source: int, missing: list[int]) -> None:
        """By the completer thread, once the operation is complete."""
        self._complete(outcome, error, source, missing)
        self._taken.set()
        self._set_future()

    def _set_future(self) -> None:
        assert self._future is not None
        failure = self.exception()
        if failure is not None and (not isinstance(failure, Exception) or self._link_broke):
            # An interruption is raised by the loop, a broken link by step.commit, neither from inside a future: what
            # DDP's reducer makes of such an exception is a crash.
            failure = None
        if failure is not None:
            self._future.set_exception(failure)
        else:
            self._future.set_result(self._result)

    def then(self, last: Callable[[], None], result: list[torch.Tensor]) -> None:
        """Runs `last` after the operation, before it is seen as complete. Call this before handing the Work out."""
        first = self._finish

        def both() -> None:
            if first is not None:
                first()
            last()

        self._finish = both
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        if isinstance(timeout, datetime.timedelta) and timeout.total_seconds() > 0 and not self._outcome:
            self.get_future()
            if not self._taken.wait(timeout.total_seconds()):
                raise RuntimeError(f"the operation did not complete within {timeout.total_seconds():g} s")
        self.wait_quietly()
        failure = self.exception()
        if failure is not None:
            raise failure
        return True

    def wait_quietly(self) -> None:
        """Completes it without raising."""
        with self._lock:
            watched = self._future is not None
        if self._outcome:
            return
        if watched:
            # The completer takes the operation from the communicator, which then no longer knows it.
            self._taken.wait()
        else:
            try:
                _, outcome, error, source, missing = self._group.comm.wait(self._op)
                self._complete(outcome, error, source, missing)
                self._group.comm.forget(self._op)
            except _engine.Interrupted:  # another thread left the generation
                self._complete(INTERRUPTED, "", 0, [])

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future()
            done = bool(self._outcome)
        if done:
            self._taken.set()
            self._set_future()
        else:
            self._group.completer.watch(self._op, self)
        return self._future

    def is_completed(self) -> bool:
        if self._outcome:
            return True
        if self._future is not None:
            return self._taken.is_set()
        try:
            if not self._group.comm.test(self._op)[1]:
                return False
        except _engine.Interrupted:
            pass
        self.wait_quietly()  # what it received is in the tensors from here on
        return True

    def is_success(self) -> bool:
        return self.exception() is None

    def result(self) -> list[Any]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def exception(self) -> BaseException | None:
        if self._outcome == FAILED:
            return RuntimeError(self._error)
        if self._outcome == INTERRUPTED and self._interruption is not None:
            return self._interruption()
        return None

    def source_rank(self) -> int:
        """For a receive: the rank in the group that sent the message."""
        return self._source

    _source_rank = source_rank


class CoalescedWork(Work):
    """Several operations as one: complete when all are, failed when one has."""

    def __init__(self, works: list[KeepstepWork], result: list[torch.Tensor]) -> None:
        super().__init__()
        self._works = works
        self._result = result
        self._future: torch.futures.Future[Any] | None = None
        _made.work = self

    def wait(self, timeout: Any = None) -> bool:
        for work in self._works:
            work.wait_quietly() if timeout is None else work.wait(timeout)
        failure = self.exception()
        if failure is not None:
            raise failure
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            together = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = together.then(self._result_of)
        return self._future

    def _result_of(self, done: torch.futures.Future[list[torch.futures.Future[Any]]]) -> list[torch.Tensor]:
        for each in done.value():
            each.wait()  # raises what it failed with
        return self._result

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return self.exception() is None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def exception(self) -> BaseException | None:
        return next((failure for failure in (work.exception() for work in self._works) if failure is not None), None)


class GroupOps:
    """What a Work needs from its generation: the communicator and the completer.

    Holds every Work until its operation is complete, because torch may drop a Work whose buffers the engine still uses.

    Attributes:
        cut_short: an operation was interrupted, so what it returned is wrong.
    """

    _SWEEP_AT = 256

    def __init__(self, comm: _engine.Communicator, completer: Completer) -> None:
        self.comm = comm
        self.completer = completer
        self.cut_short = False
        self._held: dict[int, KeepstepWork] = {}
        self._sweep_at = self._SWEEP_AT

    def hold(self, op: int, work: KeepstepWork) -> None:
        self._held[op] = work
        if len(self._held) >= self._sweep_at:
            # Works that were not waited for: completed ones are dropped.
            for number, held in list(self._held.items()):
                if held.is_completed():
                    self._held.pop(number, None)
            self._sweep_at = max(self._SWEEP_AT, 2 * len(self._held))

    def let_go(self, op: int) -> None:
        self._held.pop(op, None)

    def link_broke(self) -> bool:
        """Whether an operation failed because a link between two nodes broke."""
        try:
            return bool(self.comm.broken_link())
        except _engine.Interrupted:
            return False

    def outstanding(self) -> bool:
        """Whether operations are under way."""
        return any(not work.is_completed() for work in list(self._held.values()))

    def release(self) -> None:
        """The generation is over: waits until everything is complete. Works that outlive it must not touch its memory.

        Other threads leave first; their later calls raise `_engine.Interrupted`.
        """
        for work in list(self._held.values()):
            work.wait_quietly()
        self.comm.end()
        self._held.clear()


class Completer:
    """Sets the futures of completed operations, in a thread of its own: one per communicator."""

    def __init__(self, comm: _engine.Communicator) -> None:
        self._comm: _engine.Communicator | None = comm
        self._works: dict[int, KeepstepWork] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, op: int, work: KeepstepWork) -> None:
        with self._lock:
            comm = self._comm
            if comm is not None:
                self._works[op] = work
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, args=(comm,), name="keepstep-futures", daemon=True
                    )
                    self._thread.start()
                comm.watch(op)
        if comm is None:  # another thread left the generation
            work.complete_future(INTERRUPTED, "", 0, [])

    def _run(self, comm: _engine.Communicator) -> None:
        while True:
            completed = comm.next_completed()
            if not completed:
                return
            for op, outcome, error, source, missing in completed:
                with self._lock:
                    work = self._works.pop(op)
                work.complete_future(outcome, error, source, missing)

    def close(self) -> None:
        """Ends the thread; all operations must be complete (they are, once interrupted)."""
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is None:
            return
        comm.close()
        if self._thread is not None:
            self._thread.join()
        for op, work in self._works.items():  # completed, but the thread had been told to end
            _, outcome, error, source, missing = comm.wait(op)
            work.complete_future(outcome, error, source, missing)
        self._works.clear()


_RETURN_WORK = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "_allgather_base",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
    "_end_coalescing",
)


def give_back_works() -> None:
    """Makes ProcessGroup's methods return our Works themselves; once per process.

    torch wraps a Work made in Python in a holder that forwards only ``wait`` and ``get_future``, so ``is_completed``,
    ``exception`` and the source rank of a receive would be those of an empty Work.
    """

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            _made.work = None
            holder = method(self, *args, **kwargs)
            made, _made.work = _made.work, None
            return holder if made is None else made

        return call

    for name in _RETURN_WORK:
        method = getattr(ProcessGroup, name, None)
        if method is not None:
            setattr(ProcessGroup, name, wrapped(method))
