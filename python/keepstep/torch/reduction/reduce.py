"""Sums whose bits do not depend on the number of ranks: ``keepstep.reduce``.

A step has M leaves (micro-batches), numbered over all ranks. Each rank adds up its own contiguous run of them and
contributes the sums of whole subtrees. Every element is added in the order of one tree over all M leaves, so the result
has the same bits however the leaves are divided: docs/design/reproducible.md.

    sums = keepstep.reduce.Sum(like=gradient)
    sums.begin(leaves=16, run=keepstep.reduce.share(16))
    for gradient in gradients_of_my_micro_batches:
        sums.add(gradient)
    mean = sums.all_reduce(weight=len(sums.run))       # divided once, by the weights of all ranks

float32, float64, and float16 or bfloat16 with float32 sums, rounded once. CPU tensors. Process groups of backend
"keepstep"; without any process group this process is a world of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
import torch.distributed as dist

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.distributed.backend import KeepstepBackend
from keepstep.torch.distributed.reductions import dtype_number
from keepstep.torch.tensors.memory import dense, piece

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Sum", "share", "tree_sum"]

SUMMABLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def backend_of(group: ProcessGroup | None) -> KeepstepBackend | None:
    """The backend of `group` (default: the world's); None where there is no process group at all."""
    if group is None:
        if not dist.is_initialized():
            return None
        group = dist.group.WORLD
        assert group is not None
    backend: Any = group._get_backend(torch.device("cpu"))
    if not isinstance(backend, KeepstepBackend):
        raise KeepstepError(
            f'keepstep.reduce: the process group has backend "{dist.get_backend(group)}" for CPU tensors; canonical '
            'sums need "keepstep"'
        )
    return backend


def share(leaves: int, group: ProcessGroup | None = None) -> range:
    """This rank's leaves where the ranks of `group` share them evenly, in rank order; the first ones get one more."""
    backend = backend_of(group)
    rank, world = (0, 1) if backend is None else (backend.rank(), backend.size())
    return range(*_engine.even_run(leaves, rank, world))


class Sum:
    """The sum of M leaves, of which this rank adds a contiguous run; memory for it, used again in every step.

    It holds at most 2 log2(M) vectors (for a run of n leaves that begins at a multiple of n: 1 + log2(n)), of float32
    for float16 and bfloat16 leaves.
    """

    def __init__(self, like: torch.Tensor) -> None:
        """A sum of tensors of the shape and type of `like`."""
        if like.dtype not in SUMMABLE:
            raise TypeError(f"keepstep.reduce: {like.dtype} has no canonical order; floating-point types do")
        self.shape = like.shape
        self.dtype = like.dtype
        self.leaves = 0
        self.run = range(0)
        self._engine_sum = _engine.CanonicalSum(like.numel(), dtype_number(like.dtype, "keepstep.reduce"))

    def begin(self, leaves: int, run: range | None = None) -> None:
        """Starts over: this rank will add leaves `run` of `leaves` (default: its even share in the world)."""
        run = share(leaves) if run is None else run
        self._engine_sum.begin(leaves, run.start, run.stop)
        self.leaves = leaves
        self.run = run

    @property
    def complete(self) -> bool:
        """Whether all leaves of the run were added."""
        return self._engine_sum.complete

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self._engine_sum.bytes

    def add(self, leaf: torch.Tensor) -> None:
        """Adds the next leaf of the run."""
        if leaf.shape != self.shape or leaf.dtype != self.dtype:
            raise ValueError(
                f"keepstep.reduce: a leaf is {leaf.dtype} {list(leaf.shape)}; the sum is {self.dtype} "
                f"{list(self.shape)}"
            )
        self.add_part(0, leaf, leaf.numel())

    def add_part(self, offset: int, values: torch.Tensor | None, count: int) -> None:
        """Elements [offset, offset + count) of the current leaf, in row-major order; None: zeros.

        After each element of a leaf was given, the next leaf is current.
        """
        source = None if values is None else dense(values.detach())
        self._engine_sum.add(offset, 0 if source is None else piece(source)[0], count)

    @overload
    def all_reduce(
        self,
        weight: int = 0,
        *,
        out: torch.Tensor | None = None,
        group: ProcessGroup | None = None,
        async_op: Literal[False] = False,
    ) -> torch.Tensor: ...

    @overload
    def all_reduce(
        self,
        weight: int = 0,
        *,
        out: torch.Tensor | None = None,
        group: ProcessGroup | None = None,
        async_op: Literal[True],
    ) -> dist.Work | None: ...

    def all_reduce(
        self,
        weight: int = 0,
        *,
        out: torch.Tensor | None = None,
        group: ProcessGroup | None = None,
        async_op: bool = False,
    ) -> torch.Tensor | dist.Work | None:
        """The sum over all leaves of all ranks, divided by the sum of all ranks' weights unless that is 0.

        A collective: all ranks of `group` call it, and their runs make up the tree. `out`: where to put it (dense).
        With `async_op` it returns a Work (None in a world of one, where it is complete), and neither this object nor
        `out` may be used before that is complete. An interruption cuts it short: zeros.
        """
        if not self.complete:
            raise KeepstepError(
                f"keepstep.reduce: leaf {self._engine_sum.next_leaf} of this rank's leaves {self.run.start} to "
                f"{self.run.stop - 1} was not added; every rank adds its whole run before the all_reduce"
            )
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype)
        if out.dtype != self.dtype or out.numel() != self._engine_sum.count or not out.is_contiguous():
            raise ValueError(f"keepstep.reduce: out must be dense {self.dtype} {list(self.shape)}")
        backend = backend_of(group)
        address = piece(out)[0]
        if backend is None:
            self._engine_sum.write(address, weight)
            return None if async_op else out
        current, number = backend._collective("all_reduce_canonical")
        op = current.comm.all_reduce_canonical(
            number,
            self.leaves,
            self.run.start,
            self.run.stop,
            self._engine_sum.partials(),
            address,
            out.numel(),
            dtype_number(self.dtype, "keepstep.reduce"),
            weight,
            backend._timeout_ns(None),
        )
        work = backend.started_allreduce("all_reduce_canonical", current, op, [out], (self, out))
        if async_op:
            return work
        work.wait()
        return out


def tree_sum(leaves: Iterable[torch.Tensor], divisor: int = 0) -> torch.Tensor:
    """What any number of ranks gets for these leaves, computed here alone; divided by `divisor` unless that is 0."""
    tensors = list(leaves)
    if not tensors:
        raise ValueError("keepstep.reduce: a tree has at least one leaf")
    total = Sum(like=tensors[0])
    total.begin(len(tensors), range(len(tensors)))
    for tensor in tensors:
        total.add(tensor)
    out = torch.empty(total.shape, dtype=total.dtype)
    total._engine_sum.write(piece(out)[0], divisor)
    return out
