"""Which protected state is sharded, and FSDP2's own state around it. DTensor is only looked for once it is imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from keepstep._errors import KeepstepError


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


def _fsdp() -> Any:
    return sys.modules.get("torch.distributed.fsdp")


def fsdp_modules(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """Those parts of `modules` that ``fully_shard`` was called on."""
    fsdp = _fsdp()
    if fsdp is None:
        return
    for module in modules:
        for part in module.modules():
            if isinstance(part, fsdp.FSDPModule):
                yield part


def check_can_recover(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether there is FSDP2 in `modules`. Raises where this torch cannot leave a step of it in the middle."""
    found = next(fsdp_modules(modules), None)
    if found is not None and not hasattr(found, "reset_iter_state"):
        raise KeepstepError(
            f"protect: a model is sharded by fully_shard, and FSDP2 of torch {torch.__version__} cannot leave a step "
            "in the middle (it has no FSDPModule.reset_iter_state): use torch 2.15 or newer"
        )
    return found is not None


def reset_iteration(modules: Iterable[torch.nn.Module]) -> None:
    """After a step that was left in the middle: nothing of it is left in FSDP2, all parameters are sharded."""
    for part in fsdp_modules(modules):
        state = part._get_fsdp_state()
        if state._is_root:
            part.reset_iter_state()
            if getattr(state._state_ctx, "manual_backward_finalization", False):
                # What the schedule of a pipeline sets at the beginning of a step, and puts back at its end.
                part.set_manual_backward_finalization(False)
                part.set_requires_gradient_sync(True)
                part.set_reshard_after_backward(True)


def reshard(modules: Iterable[torch.nn.Module]) -> None:
    """Parameters that a forward without backward left whole become shards again."""
    for part in fsdp_modules(modules):
        part.reshard()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While each process builds for itself: what torch would scatter from one rank, each cuts out of its own.

    `distribute_tensor` and `parallelize_module` take the values of one rank (``src_data_rank``). Here all have them.
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
