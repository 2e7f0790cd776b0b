"""What `Replicate` does with gradients: average one sum per rank, or add micro-batches in the canonical order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel.buckets import Bucket
from keepstep.torch.reduction.reduce import share
from keepstep.torch.tensors.memory import dense

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GradientSync(Protocol):
    """One backward pass after another; within one, each bucket is filled, closed and (in some) reduced."""

    def takes(self, wanted: bool) -> bool:
        """Whether the starting backward pass matters; `wanted`: the user is not in no_sync."""

    @property
    def last(self) -> bool:
        """Whether the current backward pass ends with a reduction."""

    def take(self, bucket: Bucket, index: int) -> None:
        """The gradient of parameter `index` has arrived."""

    def absent(self, bucket: Bucket, index: int) -> None:
        """The backward pass ended without one."""

    def close(self, bucket: Bucket) -> None:
        """All of the bucket was taken or is absent."""

    def reduce(self, bucket: Bucket) -> dist.Work | None:
        """Starts the reduction; None if it is complete."""

    def finish(self, bucket: Bucket) -> None:
        """It is complete: gradients are what all ranks agree on."""

    def end_backward(self) -> None: ...


class Averaging:
    """Each rank's gradient, as it accumulated, averaged over the ranks; sums in rank order."""

    last = True

    def __init__(self, group: ProcessGroup | None, world_size: int) -> None:
        self._group = group
        self._alone = world_size == 1

    def takes(self, wanted: bool) -> bool:
        return wanted

    def take(self, bucket: Bucket, index: int) -> None:
        parameter, view = bucket.parameters[index], bucket.views[index]
        assert parameter.grad is not None
        if parameter.grad.data_ptr() != view.data_ptr() or not parameter.grad.is_contiguous():
            view.copy_(parameter.grad)
            parameter.grad = view

    def absent(self, bucket: Bucket, index: int) -> None:
        if bucket.parameters[index].grad is not None:  # from a backward pass under no_sync
            self.take(bucket, index)
            bucket.arrived[index] = True
        else:
            bucket.views[index].zero_()

    def close(self, bucket: Bucket) -> None:
        bucket.flat[bucket.flags_at :] = bucket.flags()

    def reduce(self, bucket: Bucket) -> dist.Work | None:
        if self._alone:
            return None
        return dist.all_reduce(bucket.flat, op=dist.ReduceOp.AVG, group=self._group, async_op=True)

    def finish(self, bucket: Bucket) -> None:
        for parameter, view, used in zip(bucket.parameters, bucket.views, bucket.used(), strict=True):
            if used:
                parameter.grad = view

    def end_backward(self) -> None:
        pass


class Canonical:
    """Each backward pass is a leaf of the step's tree; gradients are None between them."""

    def __init__(self, group: ProcessGroup | None, buckets: list[Bucket]) -> None:
        self._group = group
        self._buckets = buckets
        self.leaves = 0
        self.run = range(0)
        self.done = 0  # of the run
        self.weight = 0

    def begin_step(self, leaves: int, run: range | None) -> None:
        self.run = share(leaves, self._group) if run is None else run
        self.leaves = leaves
        self.done = 0
        self.weight = 0
        for bucket in self._buckets:
            bucket.sum.begin(leaves, self.run)

    @property
    def complete(self) -> bool:
        return self.leaves > 0 and self.done == len(self.run)

    def takes(self, wanted: bool) -> bool:
        if self.leaves == 0:
            raise KeepstepError(
                "reproducible: backward before the step's micro-batches are known; call begin_step(M) on the wrapper "
                "at the start of each step, or iterate over run.steps, which does"
            )
        if self.done == len(self.run):
            raise KeepstepError(
                f"reproducible: all {len(self.run)} micro-batches of this rank had their backward pass already. Each "
                "has exactly one: add losses before it; use checkpoint(..., use_reentrant=False)"
            )
        if self.last and not wanted:
            raise KeepstepError(
                "reproducible: the step's last micro-batch of this rank is under no_sync(), which is not needed: "
                "begin_step says which one is the last"
            )
        return True

    @property
    def last(self) -> bool:
        return self.done == len(self.run) - 1

    def take(self, bucket: Bucket, index: int) -> None:
        parameter = bucket.parameters[index]
        assert parameter.grad is not None
        bucket.sum.add_part(bucket.offsets[index], dense(parameter.grad), parameter.numel())
        parameter.grad = None

    def absent(self, bucket: Bucket, index: int) -> None:
        bucket.sum.add_part(bucket.offsets[index], None, bucket.parameters[index].numel())

    def close(self, bucket: Bucket) -> None:
        bucket.sum.add_part(bucket.flags_at, bucket.flags(), len(bucket.parameters))

    def reduce(self, bucket: Bucket) -> dist.Work | None:
        return bucket.sum.all_reduce(self.weight or len(self.run), out=bucket.flat, group=self._group, async_op=True)

    def finish(self, bucket: Bucket) -> None:
        for parameter, view, used in zip(bucket.parameters, bucket.views, bucket.used(), strict=True):
            parameter.grad = view if used else None

    def end_backward(self) -> None:
        self.done += 1
