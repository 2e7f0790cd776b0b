"""FSDP2's own state around a model's parameters. Only searched for if FSDP2 is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from keepstep._errors import KeepstepError


def _fsdp() -> Any:
    return sys.modules.get("torch.distributed.fsdp")


def fsdp_modules(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """The parts of `modules` that ``fully_shard`` was called on."""
    fsdp = _fsdp()
    if fsdp is None:
        return
    for module in modules:
        for part in module.modules():
            if isinstance(part, fsdp.FSDPModule):
                yield part


def check_can_recover(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether `modules` use FSDP2. Raises if this torch cannot leave a step of it in the middle."""
    found = next(fsdp_modules(modules), None)
    if found is not None and not hasattr(found, "reset_iter_state"):
        raise KeepstepError(
            f"state: a model is sharded by fully_shard, and FSDP2 of torch {torch.__version__} cannot leave a step "
            "in the middle (it has no FSDPModule.reset_iter_state): use torch 2.15 or newer"
        )
    return found is not None


def reset_iteration(modules: Iterable[torch.nn.Module]) -> None:
    """After a step that was left in the middle: removes its traces from FSDP2, so all parameters are sharded."""
    for part in fsdp_modules(modules):
        state = part._get_fsdp_state()
        if state._is_root:
            part.reset_iter_state()
            if getattr(state._state_ctx, "manual_backward_finalization", False):
                # What a pipeline's schedule sets at the start of a step and restores at its end.
                part.set_manual_backward_finalization(False)
                part.set_requires_gradient_sync(True)
                part.set_reshard_after_backward(True)


def reshard(modules: Iterable[torch.nn.Module]) -> None:
    """Shards parameters again that a forward without backward left whole."""
    for part in fsdp_modules(modules):
        part.reshard()
