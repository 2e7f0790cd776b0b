"""`Replicate`: keeps the gradients of a model equal on all ranks, like DistributedDataParallel.

Each gradient has its fixed place in a bucket (buckets.py). A bucket is reduced while backward is still running, as soon
as all its gradients of the step's last backward pass have arrived. In reproducible mode each backward pass is a leaf of
the step's canonical tree (`keepstep.reduce`), and the gradients have the same bits for every number of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel import reproducibility
from keepstep.torch.data_parallel.buckets import Bucket, make_buckets
from keepstep.torch.data_parallel.gradient_sync import Averaging, Canonical, GradientSync
from keepstep.torch.reduction import gradient_norm
from keepstep.torch.reduction.reduce import backend_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Of each model, so that the wrapper of the next generation needs no fresh memory in the middle of a recovery.
_kept: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, list[Bucket]]] = weakref.WeakKeyDictionary()


def _buckets_of(module: torch.nn.Module, bucket_bytes: int) -> list[Bucket]:
    kept_for, buckets = _kept.get(module, (-1, []))
    mapped = {id(p): p.dtype for bucket in buckets for p in bucket.parameters if p.dtype == bucket.flat.dtype}
    if kept_for != bucket_bytes or mapped != {id(p): p.dtype for p in module.parameters() if p.requires_grad}:
        buckets = make_buckets(module, bucket_bytes)
        _kept[module] = (bucket_bytes, buckets)
    return buckets


class Replicate(torch.nn.Module):
    """`module`, whose gradients are averaged over the ranks of a process group of backend "keepstep".

    Without `reproducible` it works like DistributedDataParallel: gradients accumulate under `no_sync`, and the first
    backward pass outside it averages them over the ranks. With `reproducible`, a step consists of M micro-batches over
    all ranks. `begin_step` sets M and this rank's share, each backward pass is one micro-batch, in order, and the last
    one leaves the same gradients on all ranks: the sum over all M, divided once by their number (or by the sum of what
    `weigh` was given). Between backward passes gradients are None. `run.steps` calls `begin_step` itself.

    A parameter that no rank used keeps its gradient (None in reproducible mode); if only some ranks used it, the others
    count as zero. Without a process group this is a world of one.

    Attributes:
        module: the wrapped module.
        reproducible: as given.
        ranks: the size of the process group.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        reproducible: bool = False,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
        init_sync: bool = True,
    ) -> None:
        """Wraps `module`.

        Args:
            reproducible: see above. Modules that cannot be are refused (reproducibility.py).
            process_group: default: the world's.
            bucket_cap_mb: MiB of gradients that are reduced at once.
            init_sync: whether parameters and buffers are made equal to those of the group's first rank now.
        """
        super().__init__()
        if reproducible:
            reproducibility.check_process()
            reproducibility.check_module(module)
        backend = backend_of(process_group)
        world_size = 1 if backend is None else backend.size()
        self.module = module
        self.reproducible = reproducible
        self.ranks = world_size
        self.require_backward_grad_sync = True
        if init_sync and world_size > 1:
            _make_equal(module, process_group)
        for other in live():
            if other.module is module:
                other.drop()
        self._buckets = _buckets_of(module, int(bucket_cap_mb * 2**20))
        self._mapped = {id(p) for bucket in self._buckets for p in bucket.parameters}
        self._canonical = Canonical(process_group, self._buckets) if reproducible else None
        self._sync: GradientSync = self._canonical or Averaging(process_group, world_size)
        self._buffers_before: reproducibility.BufferMarks = {}
        self._pass: int | None = None  # torch's number of the backward pass that is under way
        self._works: list[dist.Work | None] = []  # of the buckets that are being reduced, the first ones
        # Only a weak way back from parameters to wrapper and buckets, or they would keep each other alive.
        ours = weakref.ref(self)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(_arrived, ours, number, index)
            )
            for number, bucket in enumerate(self._buckets)
            for index, parameter in enumerate(bucket.parameters)
        ]
        _live.add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context accumulate gradients on this rank only."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # ---- the step (reproducible mode) ----

    def _need_canonical(self, what: str) -> Canonical:
        if self._canonical is None:
            raise KeepstepError(f"{what} is for Replicate(..., reproducible=True)")
        return self._canonical

    def begin_step(self, micro_batches: int, run: range | None = None) -> range:
        """Begins a step of `micro_batches` over all ranks; returns this rank's, which is `run` if that is given.

        All ranks pass the same number, and their runs cover all of it, at least one each. Drops the rest of an
        unfinished step. Gradients must be None.
        """
        canonical = self._need_canonical("begin_step")
        reproducibility.check_gradients(self.module, self._mapped)
        for work in self._works:  # of a step that was given up: they still read the buckets
            if work is not None:
                work.wait()
        canonical.begin_step(micro_batches, run)
        if len(canonical.run) == 0:
            raise KeepstepError(
                f"reproducible: no micro-batch is left for this rank, the step has {micro_batches}; use fewer ranks"
            )
        self._buffers_before = reproducibility.mark_buffers(self.module)
        self._pass = None
        self._works = []
        return canonical.run

    def weigh(self, count: int) -> None:
        """The next backward pass has the weight `count` (its tokens): gradients are sums, divided by the total count.

        Call it for each micro-batch, or for none: then each counts for 1.
        """
        if count < 0:
            raise ValueError(f"weigh: {count} is negative")
        self._need_canonical("weigh").weight += count

    @property
    def micro_batches_done(self) -> int:
        """How many of this rank's had their backward pass in this step."""
        return self._need_canonical("micro_batches_done").done

    # ---- norms ----

    def grad_norm(self, norm_type: float = 2.0) -> torch.Tensor:
        """The norm of all gradients, float64, after the last backward pass: the same bits on every rank."""
        return gradient_norm.grad_norm(self.module.parameters(), norm_type)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """`keepstep.torch.clip_grad_norm_` of the module's parameters."""
        return gradient_norm.clip_grad_norm_(self.module.parameters(), max_norm, norm_type)

    # ---- backward ----

    def _gradient_arrived(self, bucket: Bucket, index: int) -> None:
        if self._pass is None:
            if not self._sync.takes(self.require_backward_grad_sync):
                return
            self._begin_backward()
        elif self._pass != torch._C._current_graph_task_id():
            raise KeepstepError(
                "Replicate: a backward pass begins before the last one ended. If it runs inside it, use "
                "checkpoint(..., use_reentrant=False); if that one raised, start the step again or wrap the model again"
            )
        if bucket.arrived[index]:
            raise KeepstepError(
                "Replicate: a parameter got two gradients in one backward pass; use "
                "checkpoint(..., use_reentrant=False)"
            )
        self._sync.take(bucket, index)
        bucket.arrive(index)
        if bucket.missing == 0:
            self._advance()

    def _begin_backward(self) -> None:
        self._pass = torch._C._current_graph_task_id()
        self._works = []
        for bucket in self._buckets:
            bucket.begin_backward()
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _advance(self) -> None:
        """Closes the buckets that are complete, and reduces them in the last pass: in the same order everywhere."""
        while len(self._works) < len(self._buckets):
            bucket = self._buckets[len(self._works)]
            if bucket.missing:
                break
            self._sync.close(bucket)
            self._works.append(self._sync.reduce(bucket) if self._sync.last else None)

    def _end_backward(self) -> None:
        for bucket in self._buckets[len(self._works) :]:
            for index, arrived in enumerate(bucket.arrived):
                if not arrived:
                    self._sync.absent(bucket, index)
            bucket.missing = 0
        self._advance()
        if self._sync.last:
            for bucket, work in zip(self._buckets, self._works, strict=True):
                if work is not None:
                    work.wait()
                self._sync.finish(bucket)
            if self._canonical is not None:
                reproducibility.check_buffers(self.module, self._buffers_before)
        self._sync.end_backward()
        self._works = []
        self._pass = None

    # ---- the end ----

    def drop(self) -> None:
        """Ends the wrapper: its hooks no longer fire. The communicator's operations must be complete."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _live.discard(self)


_live: weakref.WeakSet[Replicate] = weakref.WeakSet()


def live() -> list[Replicate]:
    """All wrappers of this process that were not dropped."""
    return list(_live) if _live else []


def _arrived(wrapper: weakref.ref[Replicate], bucket: int, index: int, _parameter: torch.Tensor) -> None:
    replica = wrapper()
    if replica is not None:
        replica._gradient_arrived(replica._buckets[bucket], index)


@torch.no_grad()
def _make_equal(module: torch.nn.Module, group: ProcessGroup | None) -> None:
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=first, group=group)
