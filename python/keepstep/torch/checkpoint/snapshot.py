"""A copy of the protected state at one step, read by the saves to all destinations that are due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.checkpoint import state_dict as states
from keepstep.torch.checkpoint.snapshot_memory import Buffers, Memory


class Small(NamedTuple):
    """What each rank tells before it plans: small values, and digests of what it saves, the first time."""

    values: dict[str, Any]
    digests: dict[tuple[str, str], int]


class Pool:
    """Reusable memory for snapshots: fresh pages cost as much as the copy.

    There are never more than destinations: each reads at most one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Memory] = []

    def take(self, held: Buffers) -> Memory:
        """For tensors like those of `held`."""
        wanted = [(name, tensor.shape, tensor.dtype) for name, tensor in held.items()]
        with self._lock:
            free, self._free = self._free, []
            fitting = [each for each in free if [(n, t.shape, t.dtype) for n, t in each.tensors.items()] == wanted]
            self._free = fitting[1:]
        if fitting:
            return fitting[0]
        return Memory(held)

    def give_back(self, memory: Memory) -> None:
        with self._lock:
            self._free.append(memory)


class Snapshot:
    """One snapshot; copied by its first reader and given back by the last.

    `held`: the live tensors, which must not change until `copied` is set. `same`: names of those whose digests are
    compared between ranks.
    """

    def __init__(
        self,
        pool: Pool,
        readers: int,
        held: Buffers,
        dtensors: dict[str, torch.Tensor],
        where: dict[str, tuple[str, ...]],
        values: dict[str, Any],
        same: set[str],
        load_capsule: Callable[[], tuple[str, bytes] | None],
    ) -> None:
        self._pool = pool
        self._readers = readers
        self._lock = threading.Lock()
        self._held = held
        self._memory: Memory | None = None
        self._dtensors = dtensors
        self._where = where
        self._same = same
        self._load_capsule = load_capsule
        self._capsule: tuple[str, torch.Tensor] | None = None
        self._error: Exception | None = None
        self.small = Small(values, {})
        self.copied = threading.Event()

    def copy(self) -> None:
        """Called by one reader's thread; never raises, `state` does."""
        try:
            memory = self._memory = self._pool.take(self._held)
            for name, tensor in self._held.items():
                memory.tensors[name].copy_(tensor.detach())
            capsule = self._load_capsule()
            if capsule is not None:
                self._capsule = capsule[0], torch.frombuffer(bytearray(capsule[1]), dtype=torch.uint8)
            compared = {name: tensor for name, tensor in memory.tensors.items() if name in self._same}
            self.small = Small(self.small.values, states.digests(compared, self._dtensors, self._where))
        except Exception as error:
            self._error = error
        finally:
            self._held = {}
            self.copied.set()

    def state(self) -> tuple[dict[str, Any], Memory]:
        """As DCP sees it, and where its tensors lie. Raises what copying raised."""
        self.copied.wait()
        if self._error is not None:
            raise KeepstepError(f"{type(self._error).__name__}: {self._error}") from self._error
        assert self._memory is not None
        tensors = self._memory.tensors
        whole = {name: states.like(tensor, self._dtensors.get(name)) for name, tensor in tensors.items()}
        state = states.nested(self._where, whole)
        if self._capsule is not None:
            state[self._capsule[0]] = self._capsule[1]
        return state, self._memory

    def done(self) -> None:
        """Called by each reader when it no longer reads the snapshot."""
        with self._lock:
            self._readers -= 1
            last = self._readers == 0
        if last and self._memory is not None:
            memory, self._memory = self._memory, None
            self._pool.give_back(memory)
