"""DTensors: what this rank holds of one, and its offset. The class is only used if it is imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of `tensor`: the local part of a DTensor, else the tensor itself."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(tensor, module.DTensor):
        # to_local() would build a node of autograd, and may wait for a collective; this is memory only.
        return tensor._local_tensor  # type: ignore[no-any-return]
    return tensor


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a DTensor, sharded or not."""
    return local(tensor) is not tensor


def is_sharded(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether any of `tensors` is a DTensor of which other ranks hold another part."""
    return any(
        not placement.is_replicate()
        for tensor in tensors
        if is_dtensor(tensor)
        for placement in tensor.placements  # type: ignore[attr-defined]
    )


def offsets(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    """The global shape of a DTensor, and where the local part begins in it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, begin = compute_local_shape_and_global_offset(
        tensor.shape,
        tensor.device_mesh,  # type: ignore[attr-defined]
        tensor.placements,  # type: ignore[attr-defined]
    )
    return list(tensor.shape), list(begin)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While each process builds alone: takes its part from its own values instead of torch's scatter from one rank.

    `distribute_tensor` and `parallelize_module` use the values of one rank (``src_data_rank``). Here all have them.
    """
    placement_types: Any = importlib.import_module("torch.distributed.tensor.placement_types")
    original = placement_types.mesh_scatter

    def scatter(output: torch.Tensor, parts: list[torch.Tensor], mesh: Any, mesh_dim: int = 0, **_: Any) -> None:
        output.copy_(parts[mesh.get_local_rank(mesh_dim)])

    placement_types.mesh_scatter = scatter
    try:
        yield
    finally:
        placement_types.mesh_scatter = original
