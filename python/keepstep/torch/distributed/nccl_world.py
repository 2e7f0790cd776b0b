"""The world's NCCL communicator, replaced for each generation under the same group and backend objects.

Only if torch can reconfigure NCCL. Otherwise, and for worlds that need several roots, the whole group is made again.
See docs/design/nccl.md.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from keepstep import _engine
from keepstep._session import Session
from keepstep.torch.distributed.nccl import Abandoned, interruptible, of_group, ranks_per_root, watch

SWITCH = "KEEPSTEP_NCCL_RECONFIGURE"
HANDLE_BYTES = 256  # of a reconfigure handle, padded with zeros


def reconfigures(world_size: int) -> bool:
    """Whether a world's NCCL backend is kept and reconfigured for each generation.

    torch must have it for what it calls "nccl" (2.15 does). A reconfigured communicator starts from a single root, so
    larger worlds are made again from several. KEEPSTEP_NCCL_RECONFIGURE=0 turns it off; set it on all ranks.
    """
    if os.environ.get(SWITCH, "1") == "0" or world_size > ranks_per_root(world_size):
        return False
    if "enable_reconfigure" not in inspect.signature(dist.init_process_group).parameters:
        return False
    plugin = getattr(dist.Backend, "_plugins", {}).get("NCCL")
    creator = getattr(plugin, "creator_fn", None)
    return getattr(getattr(creator, "_original", creator), "__name__", "") == "_create_nccl2_process_group"


def is_reconfigurable(backend: Any) -> bool:
    """Whether `backend` was made to be reconfigured."""
    return bool(getattr(backend, "supports_reconfigure", False)) and bool(
        getattr(getattr(backend, "options", None), "enable_reconfigure", False)
    )


def reconfigure(
    backend: Any, uuid: int, exchange: Callable[[str], list[str]], interrupted: Callable[[], bool], options: Any
) -> None:
    """Connects `backend` among the ranks whose handles `exchange` gathers, in rank order.

    Args:
        uuid: never used before by these processes; the generation.
        exchange: sends this rank's handle to all, and returns all handles.
        options: an empty ReconfigureOptions.

    Raises `Abandoned` like `interruptible`.
    """
    options.uuid = uuid
    options.handles = exchange(backend.get_reconfigure_handle())
    interruptible(lambda: backend.reconfigure(options).wait(), interrupted, lambda _: backend.abort())


class WorldConnection:
    """The NCCL side of the world group that ``run.ddp`` made. Main thread."""

    def __init__(self, current: Session) -> None:
        self._session = current
        self._generation = 0  # it is connected for
        self._abandoned = False

    def connect(self) -> None:
        """Connects for the current generation; does nothing if connected, or if the world keeps no NCCL backend."""
        group = dist.group.WORLD
        backend = of_group(group)
        generation = self._session.need_rank("run.ddp").generation
        if backend is None or not is_reconfigurable(backend) or self._generation == generation:
            return
        watch(self._session)
        c10d = importlib.import_module("torch._C._distributed_c10d")
        try:
            reconfigure(backend, generation, _exchange, self._session.engine.interrupted, c10d.ReconfigureOptions())
        except Abandoned as error:
            self._abandoned = True
            raise _engine.Interrupted(str(error)) from None
        self._generation = generation

    def can_stay(self) -> bool:
        """Whether the world's group outlives the generation: it has no NCCL, or one that can be reconfigured."""
        if not dist.is_initialized() or self._abandoned:
            return not self._abandoned
        backend = of_group(dist.group.WORLD)
        return backend is None or is_reconfigurable(backend)

    def forget_abandoned(self) -> None:
        """Removes a world in which a thread is still connecting. Its shutdown would wait for that thread, so the group
        is never shut down."""
        if not self._abandoned:
            return
        self._abandoned = False
        self._generation = 0
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        _left_behind.append(dist.group.WORLD)
        c10d._update_default_pg(None)
        for table in (
            *("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"),
            *("pg_coalesce_state", "pg_flight_recorder_hooks"),
        ):
            getattr(c10d._world, table, {}).clear()
        c10d._unregister_all_process_groups()
        c10d._world.group_count = 0


_left_behind: list[Any] = []


def _exchange(handle: str) -> list[str]:
    """All ranks' handles, over the CPU side of the world: one collective, and no key of the Store per pair of ranks."""
    encoded = handle.encode()
    if len(encoded) > HANDLE_BYTES:
        raise RuntimeError(f"a reconfigure handle of {len(encoded)} bytes; {HANDLE_BYTES} were expected at most")
    mine = torch.zeros(HANDLE_BYTES, dtype=torch.uint8)
    mine[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    gathered = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    handles = [bytes(part.tolist()).rstrip(b"\0").decode() for part in gathered]
    if not all(handles):  # an interrupted collective completes with zeros
        raise _engine.Interrupted("the generation ended while NCCL connected")
    return handles
