"""What a Megatron job trains: which of it is protected, and which belongs to a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer

import keepstep
from keepstep import KeepstepError


def single_optimizers(optimizer: Any) -> list[Any]:
    """Megatron's optimizers around one torch optimizer each, as far as this rank has parameters for them."""
    parts = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    return [each for each in parts if each.optimizer is not None]


def require_recoverable(chunks: list[Any], optimizer: Any, replicated: bool) -> None:
    """Raises KeepstepError for what could not be recovered."""
    for chunk in chunks:
        if not isinstance(chunk, DistributedDataParallel):
            raise KeepstepError(
                f"recoverable: build() returned a {type(chunk).__qualname__} as the model; return it in "
                "megatron.core.distributed.DistributedDataParallel, or a list of these. Megatron's FSDP is not "
                "supported: use torch's FSDP2 with run.setup(sharded=True)"
            )
        if chunk.ddp_config.overlap_param_gather:
            raise KeepstepError(
                "recoverable: overlap_param_gather gathers parameters in the forward of the next step, after the "
                "commit of this one; leave it False in the DistributedDataParallelConfig and the OptimizerConfig"
            )
    if not isinstance(optimizer, MegatronOptimizer):
        raise KeepstepError(
            f"recoverable: build() returned a {type(optimizer).__qualname__} as the optimizer; return what "
            "get_megatron_optimizer returns"
        )
    if replicated and _differ_between_ranks(chunks):
        raise KeepstepError(
            "recoverable(replicated=True): ranks hold different parts (tensor or pipeline parallelism, or the "
            "distributed optimizer); write recoverable without it"
        )
    if any(each.device.type != "cpu" for chunk in chunks for each in chunk.module.parameters()):
        raise KeepstepError(
            "recoverable: the model is on a GPU. What run.setup(with_rank=True) builds has process groups "
            "for CPU tensors only in this version"
        )


def _differ_between_ranks(chunks: Iterable[Any]) -> bool:
    """Whether a rank holds what another one does not: parts of the model, or of an optimizer's state."""
    return any(chunk.ddp_config.use_distributed_optimizer for chunk in chunks) or (
        parallel_state.get_data_parallel_world_size(with_context_parallel=True) < torch.distributed.get_world_size()
    )


def protected(chunks: list[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """By name: modules, torch's optimizers, main parameters, the scheduler, the gradient scalers."""
    named: dict[str, Any] = {f"model{number or ''}": each.module for number, each in enumerate(chunks)}
    models = {each.untyped_storage().data_ptr() for chunk in chunks for each in chunk.module.parameters()}
    for number, each in enumerate(single_optimizers(optimizer)):
        named[f"optimizer{number or ''}"] = each.optimizer
        held = [parameter for group in each.optimizer.param_groups for parameter in group["params"]]
        # In fp32 the optimizer updates the model's memory; else copies of its own, which no module knows.
        own = {str(i): p for i, p in enumerate(held) if p.untyped_storage().data_ptr() not in models}
        if own:
            named[f"main_parameters{number or ''}"] = own
        if getattr(each, "grad_scaler", None) is not None:
            named[f"scaler{number or ''}"] = each.grad_scaler
    if scheduler is not None:
        named["scheduler"] = Schedule(scheduler)
    return named


class Schedule:
    """An ``OptimizerParamScheduler``, protected by how far it came: its own load_state_dict adds to that."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        in_entry = vars(self.scheduler).pop("step", None)  # which does nothing, and it loads by its step
        try:
            self.scheduler.num_steps = 0
            self.scheduler.load_state_dict(state)
        finally:
            if in_entry is not None:
                self.scheduler.step = in_entry


def state(chunks: list[Any], optimizer: Any, scheduler: Any) -> keepstep.State:
    """Of what `build` returned, and beside it that itself."""
    return keepstep.State(**protected(chunks, optimizer, scheduler)).with_unprotected(
        chunks=chunks, megatron_optimizer=optimizer, megatron_scheduler=scheduler
    )


def forget_step(chunks: Iterable[Any]) -> None:
    """An entry begins: nothing of an interrupted step is left, and all ranks reduce gradients in the same order, also
    one that is new (in its first step Megatron learns the order in which gradients arrive)."""
    for group in _bucket_groups(chunks):
        group.grad_reduce_handle = None
        group.param_gather_handle = None
        group.param_gather_dispatched = False
        group.per_param_grad_ready_counts = {}
        group.golden_per_param_grad_ready_counts = {}
        group.is_first_batch = True
        group.is_last_microbatch = True


def _bucket_groups(chunks: Iterable[Any]) -> Iterator[Any]:
    for chunk in chunks:
        yield from chunk.bucket_groups
        yield from chunk.expert_parallel_bucket_groups
