"""This process's slot in a ring of batches: joining it, waiting for a batch, starting the loader process."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from typing import Any

from keepstep import _engine, _node
from keepstep._errors import Interruption, KeepstepError
from keepstep._session import session_or_none
from keepstep.torch.data import batch_codec
from keepstep.torch.data.loader_process import BATCH, END, ERROR
from keepstep.torch.distributed.rendezvous import job_name

_NONE, _STARTING, _RUNS = _engine.LOADER_NONE, _engine.LOADER_STARTING, _engine.LOADER_RUNS
_GIVEN_UP = _engine.LOADER_GIVEN_UP

Start = Callable[[_engine.Ring, int], None]  # of the loader process, with the socket that it is handed


class RingSlot:
    """One per name and process. Kept while the process lives, through every entry of a recoverable function.

    Attributes:
        waits: how often a batch was not ready when it was asked for.
        waited_s: how long that took, in all.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = 0
        self.waited_s = 0.0
        self._spec: tuple[int, int, int, int] | None = None  # round, ahead, behind, limit_bytes
        self._link: _engine.NodeLink | None = None  # keeps the agent of a node alive
        current = session_or_none()
        if current is None:
            self._link = _node.link(_job_of_ranks())
            socket_path = self._link.rings_socket
        else:
            socket_path = current.welcome.rings
            if not socket_path:
                raise KeepstepError("cached: this node's agent could not open its door for rings; see its log")
        try:
            self._ring = _engine.Ring.connect(socket_path)
        except RuntimeError as error:
            raise KeepstepError(f"cached: cannot reach this node's agent: {error}") from None
        if current is not None:
            current.before_waiting.append(self._keep_batches)

    def join(self, spec: tuple[int, int, int, int], position: int) -> None:
        """From here on this process needs items from `position` on. Costs a store if it is in the ring already."""
        if self._spec == spec and self._ring.joined and position <= self._ring.head + sum(spec[:3]):
            try:
                self._ring.move_to(position)
                return
            except IndexError:
                pass  # gone: the job starts again from an earlier state
        self._open(spec, position)

    def _keep_batches(self) -> None:
        """A process that waits for a rank may wait for long: then the agent gives its slot in the ring away."""
        if self._spec is not None:
            self._ring.detach()

    def _open(self, spec: tuple[int, int, int, int], position: int) -> None:
        try:
            self._ring.open(self.name, *spec, position)
        except RuntimeError as error:
            raise KeepstepError(f"cached: {error}") from None
        self._spec = spec

    @property
    def incarnation(self) -> int:
        """Of the ring: another one holds none of the items that this one held."""
        return self._ring.incarnation

    def is_there(self, last: int) -> bool:
        """Whether waiting for item `last` would not take any time."""
        return self._ring.head > last or self._ring.newest in (ERROR, END)

    def keep_loading(self, start: Start) -> None:
        """Starts a loader process if there is none and it is this rank's turn."""
        if self._ring.loader == _NONE and self._ring.newest not in (ERROR, END):
            try:
                fd = self._ring.ask_for_loader()
            except RuntimeError as error:
                raise KeepstepError(f"cached: {error}") from None
            if fd >= 0:
                start(self._ring, fd)

    def wait(self, last: int, start: Start) -> None:
        """Until item `last` is there, or the loader has said its last word before it."""
        if self.is_there(last):
            return
        begun = time.monotonic()
        self.waits += 1
        current = session_or_none()
        if current is not None:
            current.engine.slow(1)  # to wait for the loader is no hang of this rank: killing it would not help
        try:
            while not self.is_there(last):
                seen = self._ring.bell
                self._look_around(start)
                if self.is_there(last):
                    return
                self._ring.wait(seen)
        finally:
            if current is not None:
                current.engine.slow(-1)
            self.waited_s += time.monotonic() - begun

    def _look_around(self, start: Start) -> None:
        current = session_or_none()
        if current is not None and current.engine.interrupted() and not current.engine.updating():
            if current.recoverable:
                raise Interruption("the generation ended")
            raise _engine.Interrupted("the generation ended while waiting for a batch")
        state = self._ring.loader
        if state == _NONE:
            self.keep_loading(start)
        elif state == _GIVEN_UP:
            raise KeepstepError(f"cached: there will be no more batches: {self._ring.why}")

    def item(self, number: int) -> tuple[int, int, int]:
        """(kind, epoch, index); kind END also after the last word."""
        if number >= self._ring.head:
            return END, 0, 0
        try:
            return self._ring.item(number)
        except RuntimeError as error:
            raise KeepstepError(f"cached: {error}") from None

    def batch(self, number: int) -> Any:
        """Item `number`, after `wait`, as the loader yielded it; its tensors view shared memory.

        Raises:
            KeepstepError: the loader raised there or before (with its traceback), or ended before it.
        """
        number = min(number, self._ring.head - 1)  # the loader's last word is all that follows
        kind, epoch, index = self.item(number)
        if kind == BATCH:
            return batch_codec.decode(self._ring.view(number))
        if kind == ERROR:
            self.raise_error(number)
        if kind == END:
            raise KeepstepError(f"cached: the loader has no batch {number}: an epoch of it was empty")
        raise KeepstepError(f"cached: batch {number} (epoch {epoch}, {index} in it) was not kept: nobody here needs it")

    def raise_error(self, number: int) -> None:
        """Raises what the loader raised at item `number`."""
        _, epoch, index = self.item(number)
        text = bytes(memoryview(self._ring.view(number))).decode("utf-8", "replace")
        raise KeepstepError(f"cached: the loader raised at batch {index} of epoch {epoch} (batch {number}):\n{text}")

    def state(self, number: int) -> Any:
        """The loader's own state after item `number`; None: it has none, or the item is gone."""
        try:
            text = self._ring.state(number)
        except RuntimeError:
            return None
        return batch_codec.decode(bytearray(text)) if text else None

    def leave(self) -> None:
        self._ring.leave()
        if self._link is not None:
            self._link.close()


def _job_of_ranks() -> str:
    """The name under which ranks of one job on this node meet; a process that is alone has one of its own."""
    try:
        return job_name()
    except KeepstepError:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise
        return f"alone/{os.getpid()}/{time.monotonic_ns()}"


_slots: dict[tuple[int, str], RingSlot] = {}


def slot(name: str) -> RingSlot:
    """This process's slot in the ring of this name; made at the first call."""
    key = (os.getpid(), name)  # a forked child has none
    if key not in _slots:
        _slots[key] = RingSlot(name)
    return _slots[key]


@atexit.register
def _leave_all() -> None:
    for (pid, _), each in list(_slots.items()):
        if pid == os.getpid():
            each.leave()
