"""Megatron's process groups, made where no peer can be asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state

from keepstep import KeepstepError


@contextlib.contextmanager
def shared_groups() -> Iterator[None]:
    """Inside, Megatron's groups of the same ranks are one: it makes some twenty, and keepstep has room for 16.

    Raises:
        KeepstepError: it asks for a group of Gloo.
    """
    create = parallel_state.create_group
    known: dict[tuple[int, ...], Any] = {tuple(range(dist.get_world_size())): dist.group.WORLD}

    def create_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") == "gloo":
            raise KeepstepError(
                "recoverable: no replacement can join a process group of Gloo; write "
                "initialize_model_parallel(create_gloo_process_groups=False) and "
                "get_megatron_optimizer(use_gloo_process_groups=False)"
            )
        key = tuple(ranks) if ranks is not None else tuple(range(dist.get_world_size()))
        if key not in known:
            kwargs.pop("pg_options", None)  # of NCCL, and for a group of its own
            known[key] = create(ranks, *args, **kwargs)
        return known[key]

    parallel_state.create_group = create_group
    try:
        yield
    finally:
        parallel_state.create_group = create
