"""A step that takes the same number of batches, over all ranks, at every number of ranks."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from keepstep._errors import KeepstepError

if TYPE_CHECKING:
    from keepstep.torch.runtime.run import Run


def batches_of(global_batch: int, loader: Any, what: str) -> int:
    """The batches of `loader`, a DataLoader or a cached one, that `global_batch` samples are.

    Args:
        what: was given `global_batch`; for errors.
    """
    try:
        samples = operator.index(global_batch)
    except TypeError:
        raise KeepstepError(f"{what}: global_batch={global_batch!r} is no whole number") from None
    plain = getattr(loader, "loader", loader)
    size = getattr(plain, "batch_size", None) or getattr(getattr(plain, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        raise KeepstepError(
            f"{what}: the loader has no batch_size, so how many of its batches are global_batch={samples} samples is "
            "unknown; give its batch_sampler a batch_size"
        )
    if samples < 1 or samples % size:
        raise KeepstepError(f"{what}: global_batch={samples} is no multiple of the loader's batch_size={size}")
    return samples // size


def batches_per_epoch(length: int, batches: int | None, ranks: int) -> int:
    """One rank's batches of an epoch that has `length`, before there is a loader. `batches`: of a step; None: any."""
    unit = batches or ranks
    return -(-length // unit) * unit // ranks


def require_fitting_world(run: Run, batches: int | None, what: str, last_step: int | None) -> None:
    """Returns if all ranks get the same number of a step's `batches`. Else an elastic job changes its size.

    Args:
        batches: None: as many as the loop takes, which no elastic job can have.
        what: is called with global_batch=; for errors.
    """
    elastic = run._session.welcome.elastic
    if batches is None:
        if elastic:
            raise KeepstepError(
                "this job is elastic (--nnodes MIN:MAX or --min-replicas), and how many batches a step of this loop "
                "takes follows from the number of ranks, so another number would train another model. Give "
                f"{what} global_batch=, the samples of a step over all ranks, and accumulate as it says; or give the "
                "job a fixed number of ranks"
            )
        return
    sizes = [ranks for ranks in range(1, batches + 1) if batches % ranks == 0]
    run._loops.tell_useful(batches, sizes)
    if run.world_size in sizes:
        return
    if (last_step is None or run.version < last_step) and run._loops.may_pause:
        run._loops.pause()
    named = ", ".join(map(str, sizes))
    raise KeepstepError(
        f"{what}: the {batches} batches of a step cannot be shared evenly by {run.world_size} ranks; use a number of "
        f"ranks that divides them ({named}), or another global_batch or batch_size"
    )
