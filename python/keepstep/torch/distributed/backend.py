"""The c10d backend "keepstep": collectives of the engine for CPU tensors.

A collective between the vote of a step and the end of its update is refused by name: updates must be local.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from keepstep._session import session_or_none
from keepstep.torch.distributed import arguments
from keepstep.torch.distributed.group_backend import GroupBackend
from keepstep.torch.distributed.hosts import host_for
from keepstep.torch.distributed.reductions import dtype_number, op_number, premultiplier
from keepstep.torch.distributed.tensor_lists import apart, copy_to_all, reduced_here, spread
from keepstep.torch.distributed.work import GroupOps, KeepstepWork, give_back_works
from keepstep.torch.tensors.memory import copier, dense, on_cpu, piece, staged

Tensors = list[torch.Tensor]

ANY_SOURCE = 0xFFFF_FFFF


class KeepstepBackend(GroupBackend):
    """The collectives and messages of one process group."""

    def allreduce(self, tensors: Tensors, options: Any = None) -> KeepstepWork:
        arguments.check_all_reduce(tensors)
        if tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors, options)
        on_cpu(tensors, "all_reduce")
        ops, group = self._collective("all_reduce")
        factor = premultiplier(options)
        if factor is not None:
            for tensor in tensors:
                tensor.mul_(factor)
        target = dense(tensors[0]) if len(tensors) == 1 else reduced_here(tensors, options)
        op = ops.comm.all_reduce(
            group,
            target.data_ptr(),
            target.numel(),
            dtype_number(target.dtype, "all_reduce"),
            op_number(options, "all_reduce"),
            self._timeout_ns(options),
        )
        finish = None if target is tensors[0] else functools.partial(copy_to_all, tensors, target)
        return self.started_allreduce("all_reduce", ops, op, tensors, target, finish)

    def started_allreduce(
        self,
        what: str,
        ops: GroupOps,
        op: int,
        result: Tensors,
        keep: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> KeepstepWork:
        """The Work of a sum over all ranks that was just started."""
        self._host.after_allreduce()
        return self._work(what, ops, op, result, keep, finish)

    def _allreduce_sparse(self, tensors: Tensors, options: Any) -> KeepstepWork:
        """Sums sparse tensors: every rank gathers the entries of all, and adds them in rank order."""
        if getattr(options, "reduceOp", dist.ReduceOp.SUM) != dist.ReduceOp.SUM:
            arguments.refuse("all_reduce", "unsupported reduction operation: sparse tensors can only be summed")
        shape = tensors[0].shape
        mine = functools.reduce(torch.add, tensors).coalesce()
        indices, values = mine.indices(), mine.values().contiguous()
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size())]
        self.allgather([counts], [torch.tensor([indices.shape[1]])]).wait()
        most = max(int(count) for count in counts)
        padded_indices = torch.zeros(most, indices.shape[0], dtype=torch.int64)
        padded_indices[: indices.shape[1]] = indices.t()
        padded_values = torch.zeros((most, *values.shape[1:]), dtype=values.dtype)
        padded_values[: values.shape[0]] = values
        all_indices = [torch.empty_like(padded_indices) for _ in counts]
        all_values = [torch.empty_like(padded_values) for _ in counts]
        self.allgather([all_indices], [padded_indices]).wait()
        work = self.allgather([all_values], [padded_values])

        def add_up() -> None:
            parts = [
                torch.sparse_coo_tensor(index[: int(count)].t(), value[: int(count)], shape)
                for index, value, count in zip(all_indices, all_values, counts, strict=True)
            ]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            copy_to_all(tensors, total.coalesce())

        work.then(add_up, tensors)
        return work

    def allreduce_coalesced(self, tensors: Tensors, options: Any = None) -> Any:
        arguments.check_all_reduce_coalesced(tensors)
        works = []
        # One that is given twice must not be reduced twice.
        for tensor, own in zip(tensors, apart(tensors), strict=True):
            works.append(self.allreduce([own], options))
            if own is not tensor:
                works[-1].then(functools.partial(copy_to_all, [tensor], own), [tensor])
        return self._together(works, tensors)

    def reduce(self, tensors: Tensors, options: Any) -> KeepstepWork:
        arguments.check_reduce(tensors, options, self.size())
        on_cpu(tensors, "reduce")
        (tensor,) = tensors
        ops, group = self._collective("reduce")
        is_root = options.rootRank == self.rank()
        factor = premultiplier(options)
        target = dense(tensor) if factor is None else dense(tensor * factor)
        op = ops.comm.reduce(
            group,
            target.data_ptr(),
            target.numel(),
            dtype_number(tensor.dtype, "reduce"),
            op_number(options, "reduce"),
            options.rootRank,
            self._timeout_ns(options),
        )
        return self._work("reduce", ops, op, tensors, target, copier(tensor, target) if is_root else None)

    def broadcast(self, tensors: Tensors, options: Any) -> KeepstepWork:
        arguments.check_broadcast(tensors, options, self.size())
        on_cpu(tensors, "broadcast")
        ops, group = self._collective("broadcast")
        tensor = tensors[options.rootTensor]
        target = dense(tensor)
        address, size = piece(target)
        op = ops.comm.broadcast(group, address, size, options.rootRank, self._timeout_ns(options))
        whole = len(tensors) == 1 and target is tensor
        return self._work(
            "broadcast", ops, op, tensors, target, None if whole else functools.partial(copy_to_all, tensors, target)
        )

    def allgather(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> KeepstepWork:
        arguments.check_all_gather(outputs, inputs, self.size())
        on_cpu(inputs, "all_gather")
        ops, group = self._collective("all_gather")
        finish: Callable[[], None] | None
        if len(inputs) == 1:
            source = dense(inputs[0])
            stand_ins, finish = staged(outputs[0])
        else:
            source = torch.stack([tensor.detach() for tensor in inputs])
            stand_ins = [torch.empty_like(source) for _ in range(self.size())]
            finish = functools.partial(spread, outputs, stand_ins)
        address, size = piece(source)
        op = ops.comm.all_gather(group, address, [t.data_ptr() for t in stand_ins], size, self._timeout_ns(options))
        result = outputs[0] if len(inputs) == 1 else outputs
        return self._work("all_gather", ops, op, result, (source, stand_ins), finish)

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> Any:
        """outputs[rank][i] gets inputs[i] of that rank."""
        arguments.check_all_gather_coalesced(outputs, inputs, self.size())
        works = [
            self.allgather([[of_rank[i] for of_rank in outputs]], [tensor], options) for i, tensor in enumerate(inputs)
        ]
        return self._together(works, [tensor for of_rank in outputs for tensor in of_rank])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> KeepstepWork:
        on_cpu([output, input], "all_gather_into_tensor")
        if output.dtype != input.dtype:
            raise TypeError(f"all_gather_into_tensor: the output is {output.dtype}, the input {input.dtype}")
        ops, group = self._collective("all_gather_into_tensor")
        source = dense(input)
        (stand_in,), finish = staged([output])
        address, size = piece(source)
        if piece(stand_in)[1] != size * self.size():
            raise ValueError(
                f"all_gather_into_tensor: the output has {piece(stand_in)[1]} bytes, {size * self.size()} are gathered"
            )
        targets = [stand_in.data_ptr() + rank * size for rank in range(self.size())]
        op = ops.comm.all_gather(group, address, targets, size, self._timeout_ns(options))
        return self._work("all_gather_into_tensor", ops, op, [output], (source, stand_in), finish)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Any:
        works = [self.all_gather_single(out, into, options) for out, into in zip(outputs, inputs, strict=True)]
        return self._together(works, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any = None) -> Any:
        """inputs[0][r] is for rank r. Their sizes may differ, alike on all ranks."""
        arguments.check_reduce_scatter(outputs, inputs, self.rank(), self.size())
        on_cpu([*outputs, *inputs[0]], "reduce_scatter")
        if len({tensor.numel() for tensor in inputs[0]}) > 1:
            return self._reduce_scatter_uneven(outputs[0], inputs[0], options)
        ops, group = self._collective("reduce_scatter")
        factor = premultiplier(options)
        sources = [dense(tensor if factor is None else tensor * factor) for tensor in inputs[0]]
        (stand_in,), finish = staged([outputs[0]])
        op = ops.comm.reduce_scatter(
            group,
            [t.data_ptr() for t in sources],
            stand_in.data_ptr(),
            stand_in.numel(),
            dtype_number(stand_in.dtype, "reduce_scatter"),
            op_number(options, "reduce_scatter"),
            self._timeout_ns(options),
        )
        return self._work("reduce_scatter", ops, op, outputs, (sources, stand_in), finish)

    def _reduce_scatter_uneven(self, output: torch.Tensor, inputs: Tensors, options: Any) -> Any:
        works = []
        for root, tensor in enumerate(inputs):
            each = dist.ReduceOptions()
            each.rootRank = root
            each.reduceOp = getattr(options, "reduceOp", dist.ReduceOp.SUM)
            each.timeout = getattr(options, "timeout", each.timeout)
            part = tensor.detach().clone(memory_format=torch.contiguous_format)
            works.append(self.reduce([part], each))
            if root == self.rank():
                works[-1].then(functools.partial(copy_to_all, [output], part.view_as(output)), [output])
        return self._together(works, [output])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> Any:
        if output.dtype != input.dtype:
            raise TypeError(f"reduce_scatter_tensor: the output is {output.dtype}, the input {input.dtype}")
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter_tensor: the input has {input.numel()} elements, {output.numel()} for each of "
                f"{self.size()} ranks are expected"
            )
        pieces = list(dense(input).view(self.size(), -1)) if input.numel() else [input.view(-1)] * self.size()
        return self.reduce_scatter([output], [pieces], options)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Any:
        works = [self.reduce_scatter_single(out, into, options) for out, into in zip(outputs, inputs, strict=True)]
        return self._together(works, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, options: Any) -> KeepstepWork:
        arguments.check_gather(outputs, inputs, options.rootRank, self.rank(), self.size())
        on_cpu(inputs, "gather")
        ops, group = self._collective("gather")
        source = dense(inputs[0])
        stand_ins, finish = staged(outputs[0] if outputs else [])
        address, size = piece(source)
        op = ops.comm.gather(
            group, address, [t.data_ptr() for t in stand_ins], size, options.rootRank, self._timeout_ns(options)
        )
        return self._work("gather", ops, op, outputs[0] if outputs else [], (source, stand_ins), finish)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any) -> KeepstepWork:
        arguments.check_scatter(outputs, inputs, options.rootRank, self.rank(), self.size())
        on_cpu(outputs, "scatter")
        ops, group = self._collective("scatter")
        sources = [dense(tensor) for tensor in (inputs[0] if inputs else [])]
        (stand_in,), finish = staged([outputs[0]])
        address, size = piece(stand_in)
        op = ops.comm.scatter(
            group, [t.data_ptr() for t in sources], address, size, options.rootRank, self._timeout_ns(options)
        )
        return self._work("scatter", ops, op, outputs, (sources, stand_in), finish)

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> KeepstepWork:
        return self._alltoall(outputs, inputs, options, outputs, None, None)

    def _alltoall(
        self, outputs: Tensors, inputs: Tensors, options: Any, result: Tensors, keep: Any, last: Any
    ) -> KeepstepWork:
        on_cpu([*outputs, *inputs], "all_to_all")
        ops, group = self._collective("all_to_all")
        sources = [dense(tensor) for tensor in inputs]
        stand_ins, finish = staged(outputs)
        op = ops.comm.all_to_all(
            group,
            [t.data_ptr() for t in sources],
            [piece(t)[1] for t in sources],
            [t.data_ptr() for t in stand_ins],
            [piece(t)[1] for t in stand_ins],
            self._timeout_ns(options),
        )
        return self._work("all_to_all", ops, op, result, (sources, stand_ins, keep), last or finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        options: Any = None,
    ) -> KeepstepWork:
        if output.dtype != input.dtype:
            raise TypeError(f"all_to_all_single: the output is {output.dtype}, the input {input.dtype}")
        (stand_in,), finish = staged([output])
        source = dense(input)
        outputs = self._split("output", stand_in, output_splits)
        inputs = self._split("input", source, input_splits)
        return self._alltoall(outputs, inputs, options, [output], (source, stand_in), finish)

    alltoall_base = all_to_all_single

    def _split(self, what: str, tensor: torch.Tensor, sizes: list[int]) -> Tensors:
        """Along dimension 0, one part a rank; equal ones if no sizes are given."""
        length = tensor.shape[0] if tensor.dim() > 0 else tensor.numel()
        if not sizes and length % self.size() != 0:
            raise ValueError(
                f"all_to_all_single: dimension 0 of the {what} is {length}, which does not divide equally among "
                f"{self.size()} ranks"
            )
        if sizes and (len(sizes) != self.size() or sum(sizes) != length):
            raise ValueError(
                f"all_to_all_single: the {what} splits {sizes} must be {self.size()} and add up to {length}"
            )
        return list(torch.split(tensor, sizes or [length // self.size()] * self.size()))

    def barrier(self, opts: Any = None) -> KeepstepWork:  # torch names this one
        ops, group = self._collective("barrier")
        return self._work("barrier", ops, ops.comm.barrier(group, self._timeout_ns(opts)), [])

    def monitored_barrier(self, options: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that did not arrive in time, with Gloo's error texts."""
        timeout = getattr(options, "timeout", self._timeout)
        if timeout.total_seconds() <= 0:
            raise RuntimeError(f"Rank {self.rank()} timed out in monitoredBarrier after 0 ms.")
        ops, group = self._collective("monitored_barrier")
        work = self._work("monitored_barrier", ops, ops.comm.barrier(group, self._timeout_ns(options)), [])
        try:
            work.wait()
        except RuntimeError as error:
            if not work.missing:
                raise
            late = work.missing if wait_all_ranks else work.missing[:1]
            names = ("Ranks " if len(late) > 1 else "Rank ") + ", ".join(str(rank) for rank in late)
            failed = f"{names} failed to pass monitoredBarrier in {timeout.total_seconds() * 1000:.0f} ms"
            if self.rank() != 0:
                failed = (
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0: {failed}"
                )
            raise RuntimeError(failed) from error

    def send(self, tensors: Tensors, to: int, tag: int) -> KeepstepWork:
        on_cpu(tensors, "send")
        ops, group = self._enter("send")
        source = dense(tensors[0])
        address, size = piece(source)
        op = ops.comm.send(group, address, size, to, tag, self._timeout_ns())
        return self._work("send", ops, op, tensors, source)

    def recv(self, tensors: Tensors, source: int, tag: int) -> KeepstepWork:
        on_cpu(tensors, "recv")
        ops, group = self._enter("recv")
        (stand_in,), finish = staged([tensors[0]])
        address, size = piece(stand_in)
        op = ops.comm.receive(group, address, size, source, tag, self._timeout_ns())
        return self._work("recv", ops, op, tensors, stand_in, finish)

    def recv_anysource(self, tensors: Tensors, tag: int) -> KeepstepWork:
        return self.recv(tensors, ANY_SOURCE, tag)


def _create(options: Any, backend_options: Any = None) -> KeepstepBackend:
    if session_or_none() is not None:
        # torch's own recorder would warn whenever this process gets another rank; ours is `recent`.
        recording: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
        recording.add("keepstep")
    timeout = options.timeout
    host, is_world = host_for(options, int(timeout.total_seconds() * 1000))
    ranks = None if is_world else list(options.global_ranks_in_group)
    return KeepstepBackend(options.group_rank, options.group_size, host, ranks, str(options.group_id), timeout)


def register_backend() -> None:
    """Makes ``backend="keepstep"`` known to torch.distributed; once per process."""
    if "KEEPSTEP" not in dist.Backend._plugins:
        dist.Backend.register_backend("keepstep", _create, extended_api=True, devices=["cpu"])
        give_back_works()
