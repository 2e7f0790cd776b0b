"""A step whose backward keepstep did not run: nothing weighted its gradients, and its loss is not known."""

from __future__ import annotations

import math
import sys

from keepstep._session import Session
from keepstep.torch.step.steps import Step


class WithoutLoss:
    """Warns once per process, on rank 0."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._said = False

    def after(self, step: Step) -> None:
        """Called after the commit of `step`. If its loss is nan, no rank called ``backward`` or ``add_loss``."""
        if self._said or step.has_loss or step.run.rank != 0 or not math.isnan(step.loss):
            return
        self._said = True
        because = (
            f"step {step.number} was committed without step.backward(loss): its gradients are not weighted as the mean "
            "over the global batch, and step.loss is nan. Write step.backward(loss) for loss.backward(), or "
            "step.add_loss(loss) where something else runs the backward"
        )
        print(f"keepstep: {because}", file=sys.stderr)
        self._session.note("without_loss", step.number, because)
