"""The learning rate for a changing batch: set in the update and stored with the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from keepstep._errors import KeepstepError
from keepstep.scaling import Rule, lr_factor

FACTOR = "keepstep_lr_factor"  # in each param group: the factor that its rates were multiplied by
_OF_A_GROUP = ("lr", "initial_lr", "max_lr", "min_lr")
_OF_A_SCHEDULE = ("base_lrs", "max_lrs")


def scale_lr(optimizer: Optimizer, base_batch: int, batch: int, rule: Rule, *schedules: Any) -> None:
    """Scales the learning rates of `optimizer`, which were chosen for `base_batch`, to a step of `batch` samples.

    Call it in ``step.commit``, before ``optimizer.step``, with the step's own batch:

        step.commit(
            lambda: keepstep.torch.scale_lr(optimizer, 256, step.global_batch, "sqrt", schedule),
            optimizer.step,
            schedule.step,
        )

    The factor is stored in the param groups, and so in the protected state: a redone step, a recovered rank and a
    newcomer have the same rates as all others. Calling it again with the same batch changes nothing.

    Args:
        optimizer: a protected one.
        base_batch: the batch that the rates were chosen for.
        batch: ``step.global_batch``.
        rule: see `keepstep.scaled_lr`.
        *schedules: its schedules; their initial rates (``base_lrs``) are scaled as well.
    """
    wanted = lr_factor(base_batch, batch, rule)
    before = {float(group.get(FACTOR, 1.0)) for group in optimizer.param_groups}
    if len(before) != 1:
        raise KeepstepError(
            f"scale_lr: param groups have the factors {', '.join(map(str, sorted(before)))}; was one added since? Add "
            f"groups before the first step, or with '{FACTOR}' as the others have it"
        )
    ratio = wanted / before.pop()
    for group in optimizer.param_groups:
        group[FACTOR] = wanted
        if ratio != 1.0:
            for key in _OF_A_GROUP:
                if isinstance(rate := group.get(key), torch.Tensor):
                    rate.mul_(ratio)  # a captured graph reads this tensor
                elif rate is not None:
                    group[key] = rate * ratio
    if ratio != 1.0:
        for schedule in schedules:
            _scale_schedule(schedule, ratio)


def _scale_schedule(schedule: Any, ratio: float) -> None:
    for part in getattr(schedule, "_schedulers", []):
        _scale_schedule(part, ratio)
    for name in _OF_A_SCHEDULE:
        if (rates := getattr(schedule, name, None)) is not None:
            setattr(schedule, name, [rate * ratio for rate in rates])
