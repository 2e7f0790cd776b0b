"""The sum of a step's losses in the canonical order: the same bits on every rank, for every number of ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from keepstep.torch.reduction.reduce import Sum


class GlobalLoss:
    """Losses of one step, added in float64. The last one starts the collective, which runs beside its backward."""

    def __init__(self, micro_batches: int, run: range) -> None:
        self._out = torch.zeros(2, dtype=torch.float64)  # the sum of the losses; of what it is to be divided by
        self._sum = Sum(like=self._out)
        self._sum.begin(micro_batches, run)
        self._work: dist.Work | None = None

    def add(self, loss: torch.Tensor, count: int) -> None:
        """The next micro-batch's. With the run's last one all ranks meet."""
        self._sum.add(torch.tensor([loss.double().item(), float(count)], dtype=torch.float64))
        if self._sum.complete:
            self._work = self._sum.all_reduce(out=self._out, async_op=True)

    def result(self) -> tuple[float, int]:
        """(sum, divisor) over all ranks, once all were added here; waits for the others."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        total, count = self._out.tolist()
        return total, int(count)
