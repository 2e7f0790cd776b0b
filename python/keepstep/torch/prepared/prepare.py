"""``run.prepare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel.replicate import Replicate
from keepstep.torch.distributed import foreign_groups
from keepstep.torch.prepared.batch_source import source_of
from keepstep.torch.prepared.committing import PreparedOptimizer, PreparedScaler, Updates
from keepstep.torch.prepared.fixed_batch import batches_of, require_fitting_world
from keepstep.torch.prepared.plateau import PreparedPlateau
from keepstep.torch.prepared.prepared_loader import PreparedLoader
from keepstep.torch.tensors import dtensor

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from keepstep.torch.data.cached import CachedLoader
    from keepstep.torch.runtime.run import Run


def prepare(
    run: Run,
    model: torch.nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loader: DataLoader[Any] | CachedLoader,
    schedule: Any,
    epoch_schedule: Any,
    scaler: torch.amp.GradScaler | None,
    plateau: ReduceLROnPlateau | None,
    global_batch: int | None,
    last_step: int | None,
    veto: Callable[[Any], str | bool | None] | None,
) -> tuple[Any, ...]:
    """See `Run.prepare`."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    _require_protected(run, optimizers, "optimizer")
    if scaler is not None:
        _require_protected(run, [scaler], "scaler")
    if plateau is not None:
        _require_protected(run, [plateau], "plateau")
    per_step = None if global_batch is None else batches_of(global_batch, loader, "run.prepare")
    wrapped = model if isinstance(model, DistributedDataParallel | Replicate) else _wrap(run, model)
    if isinstance(wrapped, Replicate) and wrapped.reproducible:
        raise KeepstepError(
            "run.prepare: the same bits at each number of ranks need a number of micro-batches that is known when a "
            "step begins; write the loop over run.steps, or leave out reproducible=True"
        )
    run._form("run.prepare")
    foreign_groups.refuse("run.prepare")
    if run.version and not run._committed.position:
        raise KeepstepError(
            f"run.prepare: the {run.version} steps so far did not use its loader, so where it goes on is unknown. "
            "Write the loop over run.steps, or begin with step 0: another place for run.checkpoint"
        )
    require_fitting_world(run, per_step, "run.prepare", last_step)
    prepared = PreparedLoader(run, source_of(loader, run._session), last_step, per_step)
    plateaus = [] if plateau is None else [PreparedPlateau(plateau).enter(run, prepared)]
    schedules = [*_listed(schedule), *plateaus]
    updates = Updates(prepared, optimizers, schedules, _listed(epoch_schedule), veto, scaler is not None)
    ours = [PreparedOptimizer(each, updates) for each in optimizers]
    scalers = [] if scaler is None else [PreparedScaler(scaler, updates)]
    return (wrapped, ours[0] if isinstance(optimizer, Optimizer) else ours, prepared, *scalers, *plateaus)


def _listed(schedule: Any) -> list[Any]:
    if schedule is None:
        return []
    return list(schedule) if isinstance(schedule, list | tuple) else [schedule]


def _require_protected(run: Run, items: list[Any], what: str) -> None:
    if not items:
        raise KeepstepError("run.prepare: no optimizer is given")
    for item in items:
        if not any(known is item for known in run._registry.objects.values()):
            raise KeepstepError(
                f"run.prepare: this {type(item).__name__} is not protected, so a replaced rank would not have its "
                f"state: return keepstep.State(..., {what}={what}) from build(), and pass state.{what}"
            )


def _wrap(run: Run, model: torch.nn.Module) -> torch.nn.Module:
    """A model that build() sharded averages its gradients itself."""
    return model if any(dtensor.is_dtensor(each) for each in model.parameters()) else run.ddp(model)
