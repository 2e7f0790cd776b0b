"""The communicator of a process that rehearses: one rank of a world without peers.

It has the methods of `_engine.Communicator`. Each operation completes at once: sums and broadcasts keep this rank's
input, gathers return it in every place, and what peers would send is zeros. So shapes, buckets and code paths are those
of the real world, and the numbers mean nothing.
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Sequence

from keepstep.torch.distributed.work import DONE

Completion = tuple[int, int, str, int, list[int]]

_ELEMENT_BYTES = (4, 8, 2, 2, 1, 1, 2, 4, 8, 1)  # by the engine's number of a dtype (reductions.py)
_NOBODY_WATCHED = None


class RehearsalCommunicator:
    """Rank `rank` of `world`. Any thread; never waits, but in `next_completed`."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._groups = [list(range(world))]
        self._operations = 0
        self._watched: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def _done(self) -> int:
        self._operations += 1
        return self._operations

    def _place(self, group: int) -> int:
        return self._groups[group].index(self._rank)

    # ---- groups ----

    def create_group(self, members: Sequence[int], _key: str) -> int:
        self._groups.append(list(members))
        return len(self._groups) - 1

    def release_group(self, group: int) -> None:
        pass

    def end(self) -> None:
        pass

    # ---- collectives ----

    def all_reduce(self, *_: int) -> int:
        return self._done()

    reduce = broadcast = barrier = send = all_reduce

    def all_gather(self, _group: int, source: int, targets: Sequence[int], size: int, _timeout_ns: int) -> int:
        for target in targets:
            ctypes.memmove(target, source, size)
        return self._done()

    def reduce_scatter(
        self, group: int, sources: Sequence[int], target: int, count: int, dtype: int, _op: int, _timeout_ns: int
    ) -> int:
        ctypes.memmove(target, sources[self._place(group)], count * _ELEMENT_BYTES[dtype])
        return self._done()

    def gather(self, group: int, source: int, targets: Sequence[int], size: int, _root: int, timeout_ns: int) -> int:
        return self.all_gather(group, source, targets, size, timeout_ns)  # no targets but on the root

    def scatter(self, group: int, sources: Sequence[int], target: int, size: int, _root: int, _timeout_ns: int) -> int:
        if sources:
            ctypes.memmove(target, sources[self._place(group)], size)
        else:
            ctypes.memset(target, 0, size)
        return self._done()

    def all_to_all(
        self,
        _group: int,
        sources: Sequence[int],
        source_sizes: Sequence[int],
        targets: Sequence[int],
        target_sizes: Sequence[int],
        _timeout_ns: int,
    ) -> int:
        for source, given, target, size in zip(sources, source_sizes, targets, target_sizes, strict=True):
            ctypes.memset(target, 0, size)
            ctypes.memmove(target, source, min(given, size))
        return self._done()

    def all_reduce_canonical(
        self,
        _group: int,
        _leaves: int,
        _begin: int,
        _end: int,
        _partials: Sequence[int],
        output: int,
        count: int,
        dtype: int,
        _weight: int,
        _timeout_ns: int,
    ) -> int:
        ctypes.memset(output, 0, count * _ELEMENT_BYTES[dtype])
        return self._done()

    def receive(self, _group: int, target: int, size: int, _source: int, _tag: int, _timeout_ns: int) -> int:
        ctypes.memset(target, 0, size)
        return self._done()

    # ---- completion ----

    def test(self, op: int) -> Completion:
        return (op, DONE, "", 0, [])

    wait = test

    def forget(self, op: int) -> None:
        pass

    def watch(self, op: int) -> None:
        self._watched.put(op)

    def next_completed(self) -> list[Completion]:
        op = self._watched.get()
        return [] if op is _NOBODY_WATCHED else [self.test(op)]

    def close(self) -> None:
        self._watched.put(_NOBODY_WATCHED)

    def interrupted(self) -> bool:
        return False

    def recent(self) -> list[dict[str, object]]:
        return []

    def collectives_entered(self) -> int:
        return self._operations
