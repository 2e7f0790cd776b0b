"""Reasons to skip a step's update, for ``step.commit(..., veto=...)``.

A veto is a function of the step that returns a reason or None. One rank's reason is enough: no rank updates, the step
still counts, and nothing but its number changes (docs/design/corruption.md).
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from keepstep._errors import KeepstepError

if TYPE_CHECKING:
    from keepstep.torch.step.open_step import OpenStep


def nonfinite(step: OpenStep) -> str | None:
    """Vetoes a step whose loss on this rank, or whose gradients, are not all finite.

    Raises:
        KeepstepError: an enabled GradScaler is protected: it needs such gradients to find its scale.
    """
    for name, item in step.run._registry.objects.items():
        if isinstance(item, torch.amp.GradScaler) and item.is_enabled():
            raise KeepstepError(
                f"veto.nonfinite: '{name}' skips such updates itself, and lowers its scale by them; with a GradScaler "
                "use veto.spike, or a function of your own"
            )
    if step.has_loss and not math.isfinite(step.loss):
        return f"the loss of this rank is {step.loss}"
    if not math.isfinite(gradient_norm(step)):
        return "a gradient is not finite"
    return None


class spike:
    """Vetoes a step whose gradient norm is more than `factor` times the median of the last `window` steps'.

    All ranks have the same gradients, so they agree. A new process abstains until it has seen `window` steps; the
    others decide for it. Create it in ``run.setup`` or outside the training function, so that its history outlives an
    interruption. Vetoed steps do not enter the median.
    """

    def __init__(self, factor: float, window: int = 16) -> None:
        if factor <= 1 or window < 1:
            raise KeepstepError(f"veto.spike: factor={factor} must be above 1 and window={window} at least 1")
        self.factor = factor
        self.window = window
        self._seen: OrderedDict[int, float] = OrderedDict()  # norms by step; a redone step overwrites its own

    def __call__(self, step: OpenStep) -> str | None:
        """The reason, or None."""
        norm = gradient_norm(step)
        before = [seen for number, seen in self._seen.items() if number < step.number][-self.window :]
        if len(before) == self.window and not norm <= self.factor * statistics.median(before):
            self._seen.pop(step.number, None)
            return (
                f"the norm of the gradients is {norm:.6g}, more than {self.factor:g} times the median "
                f"{statistics.median(before):.6g} of {self.window} steps"
            )
        if math.isfinite(norm):
            self._seen[step.number] = norm
        while len(self._seen) > self.window + 1:
            self._seen.popitem(last=False)
        return None


def gradient_norm(step: OpenStep) -> float:
    """The norm of all gradients of protected modules together."""
    gradients = [
        parameter.grad
        for module in step.run._registry.modules()
        for parameter in module.parameters()
        if parameter.grad is not None
    ]
    if not gradients:
        return 0.0
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))
