"""What torch wants to know of a process group, and the group's way to the communicator of the current generation.

The Backend object lives as long as the process; the communicator below it is its host's (hosts.py) and may change with
the generation.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Backend

from keepstep.torch.distributed.backend_base import BackendBase
from keepstep.torch.distributed.hosts import Host
from keepstep.torch.distributed.work import CoalescedWork, GroupOps, KeepstepWork

_alive: set[BackendBase] = set()  # torch keeps only the C++ half of a Backend alive


class GroupBackend(BackendBase):
    """One process group's view: its life, its names, and its way to the communicator. `ranks`: the host's ranks in the
    group, in group order; None for all of them."""

    def __init__(
        self, group_rank: int, group_size: int, host: Host, ranks: list[int] | None, key: str, timeout: Any
    ) -> None:
        super().__init__(group_rank, group_size)
        self._host = host
        self._ranks = ranks
        self._key = key
        self._timeout = timeout
        self._group = 0
        self._generation = 0
        self._sequence = 0
        self._splits = 0
        self._closed = False
        self._entering = threading.Lock()
        self._coalescing: list[KeepstepWork] | None = None
        _alive.add(self)

    def getBackendName(self) -> str:
        return "keepstep"

    def _get_backend_name(self) -> str:
        return "keepstep"

    def name(self) -> str:
        return "keepstep"

    # torch's own getters, if not overridden here, recurse for ever.
    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    _supports_time_estimate = False

    @property
    def options(self) -> Any:
        options = Backend.Options("keepstep", self._timeout)
        options.global_ranks_in_group = list(self._ranks or [])
        return options

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass  # counted from 0 on every rank

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _enter(self, what: str) -> tuple[GroupOps, int]:
        if self._closed:
            raise RuntimeError(f"{what}: the process group was destroyed")
        ops, generation = self._host.enter(what)
        with self._entering:
            if self._generation != generation:
                self._group = 0 if self._ranks is None else ops.comm.create_group(self._ranks, self._key)
                self._generation = generation
            return ops, self._group

    def _collective(self, what: str) -> tuple[GroupOps, int]:
        entered = self._enter(what)
        self._sequence += 1
        return entered

    def _timeout_ns(self, options: Any = None) -> int:
        timeout = getattr(options, "timeout", None)
        if not isinstance(timeout, datetime.timedelta) or timeout.total_seconds() <= 0:
            timeout = self._timeout
        return int(timeout.total_seconds() * 1e9) if isinstance(timeout, datetime.timedelta) else -1

    def _work(
        self,
        what: str,
        ops: GroupOps,
        op: int,
        result: list[Any],
        keep: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> KeepstepWork:
        work = KeepstepWork(ops, op, result, keep, finish, lambda: self._host.interruption(what))
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def split(self, store: Any, ranks: list[int], options: Any) -> GroupBackend | None:
        """The backend of a part of this group; `ranks` are ranks in this group."""
        self._splits += 1
        if self.rank() not in ranks:
            return None
        mine = [rank if self._ranks is None else self._ranks[rank] for rank in ranks]
        name = getattr(options, "group_name", "") or "".join(f"{rank}," for rank in ranks)
        timeout = getattr(options, "_timeout", self._timeout)
        return type(self)(
            ranks.index(self.rank()), len(ranks), self._host, mine, f"{self._key}/{self._splits}/{name}", timeout
        )

    def comm_split_count(self) -> int:
        return self._splits

    def recent(self) -> list[dict[str, object]]:
        """The flight recorder: the last collectives of this rank in all its groups, oldest first. Times are
        CLOCK_MONOTONIC in nanoseconds, 0 if not reached; outcome: 0 pending, 1 done, 2 interrupted, 3 failed."""
        return self._enter("recent")[0].comm.recent()

    def abort(self) -> None:
        """Ends the operations of all ranks that share this group's communicator; they raise."""
        self._host.abort("dist.abort was called")

    def shutdown(self) -> None:
        _alive.discard(self)
        if self._closed:
            return
        self._closed = True
        if self._ranks is None:
            self._host.close()
        elif self._generation != 0:
            self._host.release_group(self._group, self._generation)

    def start_coalescing(self) -> None:
        if self._coalescing is not None:
            raise RuntimeError("coalescing has begun already in this process group")
        self._coalescing = []

    def end_coalescing(self) -> Any:
        works, self._coalescing = self._coalescing or [], None
        return CoalescedWork(works, []) if works else None

    def _together(self, works: list[KeepstepWork], result: list[torch.Tensor]) -> Any:
        if self._coalescing is not None or len(works) == 1:
            return works[-1]
        return CoalescedWork(works, result)
