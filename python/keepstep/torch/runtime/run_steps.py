"""The loop over ``run.steps``: steps of a data set whose samples have numbers, or of a cached loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.data.map_dataset import MapDataset
from keepstep.torch.distributed import foreign_groups
from keepstep.torch.recovery import rehearsal
from keepstep.torch.sharded import fsdp
from keepstep.torch.step.batch_sizes import Batches, checked_position
from keepstep.torch.step.steps import Step
from keepstep.torch.step.stream_plan import plan_for

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from keepstep.scaling import PerWorld
    from keepstep.torch.data.cached import CachedLoader
    from keepstep.torch.runtime.run import Run


def run_steps(
    run: Run,
    dataset: MapDataset | CachedLoader,
    global_batch: int | PerWorld[int],
    micro_batch: int | PerWorld[int],
    last_step: int,
    shuffle: bool,
    collate: Callable[[list[Any]], Any] | None,
    position: torch.Tensor | None,
    mesh: DeviceMesh | None,
) -> Iterator[Step]:
    """The arguments are those of `Run.steps`."""
    run._form("run.steps")
    if run._committed.position:
        raise KeepstepError(
            "run.steps: this function's steps so far used the loader that run.prepare returned; use that, or "
            "run.steps, for all of them"
        )
    foreign_groups.refuse("run.steps")
    if run._session.witness is not None:
        last_step = run._session.witness.bounded(last_step)
    loops = run._loops
    batches = Batches.of(global_batch, micro_batch)
    place, parts = (run.rank, run.world_size) if mesh is None else (mesh.get_local_rank(), mesh.size())
    even = fsdp.check_can_recover(run._registry.modules())
    sizes = batches.even_sizes(run.world_size // parts) if even else []
    loops.tell_useful(batches.max_ranks, sizes)
    fits = batches.feeds(run.world_size) and (not sizes or run.world_size in sizes)
    if run.version < last_step and not fits and loops.may_pause:
        loops.pause()
    position = checked_position(position, run._registry, batches)
    origin = None if position is None else (run.version + 1, int(position.item()))
    plan = plan_for(dataset, *batches.at(run.world_size), shuffle, collate, run.seed, place, parts, origin)
    if even and plan.micro_batches % parts:
        raise KeepstepError(
            f"run.steps: {plan.micro_batches} micro-batches a step cannot be shared evenly by {parts} ranks, and "
            "FSDP2 needs each rank to have as many forward and backward passes as the others; choose global_batch "
            "and micro_batch so that they can"
        )
    if run.rehearsing:
        run._session.rehearsal.begin_steps()
        plan = plan.shortened(rehearsal.MICRO_BATCHES)
    loops.enter()
    if not run.rehearsing:
        loops.begin(run.version, last_step)
    while loops.goes_on(last_step):
        number = run.version + 1
        run._session.injector.at("between", number)
        plan.read_ahead(number)
        step = Step(run, plan, number, position)
        loops.open(step)
        try:
            yield step
        except GeneratorExit:
            loops.left(step)
            raise
        if not step.committed:
            raise KeepstepError(f"step {number} ended without step.commit(...); every step must be committed")
        loops.finish_body(more=number < last_step)
    loops.end()
    if run.version == last_step:  # else this loop ended before this entry
        run._saves.save_last()
