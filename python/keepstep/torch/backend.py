"""The c10d backend "keepstep": collectives of the worker engine for CPU tensors.

The Backend object lives as long as the process; the communicator below it changes with the generation. Interrupted
collectives are drained, not raised (design section 7). A collective between the vote of a step and the end of its
update is refused by name: updates must be local.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep._session import Session, session
from keepstep.torch.backend_base import BackendBase
from keepstep.torch.memory import dense, piece
from keepstep.torch.work import Completer, GroupOps, KeepstepWork

_DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
_OPS = {"SUM": 0, "AVG": 1, "PRODUCT": 2, "MIN": 3, "MAX": 4, "BAND": 5, "BOR": 6, "BXOR": 7}


class Communication:
    """The communicator of the current generation and what belongs to it; swapped as a whole."""

    def __init__(self) -> None:
        self.current: GroupOps | None = None
        self.generation = 0

    def attach(self, current_session: Session) -> None:
        """Takes the communicator of the generation that this process just formed."""
        comm = current_session.engine.communicator()
        assert current_session.assignment is not None
        self.current = GroupOps(comm, Completer(comm))
        self.generation = current_session.assignment.generation

    def detach(self) -> None:
        """Lets go of it: its arena belongs to the next generation."""
        if self.current is not None:
            current, self.current = self.current, None
            current.completer.close()
            current.release()


communication = Communication()


class KeepstepBackend(BackendBase):
    """One process group's view. `ranks`: the world ranks of the group, in group order; None for the world."""

    def __init__(self, group_rank: int, group_size: int, ranks: list[int] | None, key: str, timeout: Any) -> None:
        super().__init__(group_rank, group_size)
        self._session = session('backend="keepstep"')
        self._ranks = ranks
        self._key = key
        self._timeout = timeout
        self._group = 0
        self._generation = 0

    # ---- plumbing ----

    def getBackendName(self) -> str:
        return "keepstep"

    def _get_backend_name(self) -> str:
        return "keepstep"

    def name(self) -> str:
        return "keepstep"

    def _enter(self, what: str) -> tuple[GroupOps, int]:
        if self._session.engine.updating():
            raise KeepstepError(
                f"{what} inside run.commit(...): after the vote an update must be local, or ranks could end up with "
                "different states. Do it before run.commit, or say run.commit(..., communicates=True) if the "
                "optimizer itself communicates."
            )
        current = communication.current
        if current is None:
            raise _engine.Interrupted(f"{what}: the generation ended")
        if self._generation != communication.generation:
            self._group = 0 if self._ranks is None else current.comm.create_group(self._ranks, self._key)
            self._generation = communication.generation
        return current, self._group

    def shutdown(self) -> None:
        """The group is destroyed: its place is free again once every member came here. May be called repeatedly."""
        current = communication.current
        if current is not None and self._ranks is not None and self._generation == communication.generation:
            current.comm.release_group(self._group)
        self._generation = 0

    def _timeout_ns(self, options: Any) -> int:
        timeout = getattr(options, "timeout", None)
        if not isinstance(timeout, datetime.timedelta) or timeout.total_seconds() <= 0:
            timeout = self._timeout
        return int(timeout.total_seconds() * 1e9) if isinstance(timeout, datetime.timedelta) else -1

    @staticmethod
    def _dtype(tensor: torch.Tensor, what: str) -> int:
        if tensor.dtype not in _DTYPES:
            raise TypeError(f'{what}: backend "keepstep" does not reduce {tensor.dtype}')
        return _DTYPES[tensor.dtype]

    @staticmethod
    def _op(options: Any, what: str) -> int:
        op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
        text = str(op).rsplit(".", 1)[-1].rstrip(">").split(":")[0]
        for name, number in _OPS.items():
            if op == getattr(dist.ReduceOp, name):
                return number
        raise TypeError(f'{what}: backend "keepstep" has no reduction {text}')

    @staticmethod
    def _cpu(tensors: list[torch.Tensor], what: str) -> None:
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise TypeError(f'{what}: backend "keepstep" moves CPU tensors; this one is on {tensor.device}')

    @staticmethod
    def _staged(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Dense stand-ins for outputs, and what copies them back (None if all are dense themselves)."""
        stand_ins = [
            tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for tensor in tensors
        ]
        pairs = [(t, s) for t, s in zip(tensors, stand_ins, strict=True) if t is not s]

        def copy_back() -> None:
            with torch.no_grad():
                for tensor, stand_in in pairs:
                    tensor.copy_(stand_in)

        return stand_ins, (copy_back if pairs else None)

    # ---- collectives ----

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> KeepstepWork:
        self._cpu(tensors, "all_reduce")
        (tensor,) = tensors
        current, group = self._enter("all_reduce")
        target = dense(tensor)
        finish = None
        if target is not tensor:
            finish = _copier(tensor, target)
        op = current.comm.all_reduce(
            group,
            target.data_ptr(),
            target.numel(),
            self._dtype(tensor, "all_reduce"),
            self._op(options, "all_reduce"),
            self._timeout_ns(options),
        )
        if self._session.injector.active:
            self._inject_allreduce()
        return KeepstepWork(current, op, tensors, target, finish)

    def _inject_allreduce(self) -> None:
        from keepstep.torch.run import current_step

        self._session.injector.at("allreduce", current_step())

    def allreduce_coalesced(self, tensors: list[torch.Tensor], options: Any = None) -> KeepstepWork:
        work = None
        for tensor in tensors[:-1]:
            self.allreduce([tensor], options).wait()
        work = self.allreduce([tensors[-1]], options)
        work._result = tensors
        return work

    def reduce(self, tensors: list[torch.Tensor], options: Any) -> KeepstepWork:
        self._cpu(tensors, "reduce")
        (tensor,) = tensors
        current, group = self._enter("reduce")
        target = dense(tensor)
        op = current.comm.reduce(
            group,
            target.data_ptr(),
            target.numel(),
            self._dtype(tensor, "reduce"),
            self._op(options, "reduce"),
            options.rootRank,
            self._timeout_ns(options),
        )
        return KeepstepWork(current, op, tensors, target, None if target is tensor else _copier(tensor, target))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> KeepstepWork:
        self._cpu(tensors, "broadcast")
        (tensor,) = tensors
        current, group = self._enter("broadcast")
        target = dense(tensor)
        address, size = piece(target)
        op = current.comm.broadcast(group, address, size, options.rootRank, self._timeout_ns(options))
        return KeepstepWork(current, op, tensors, target, None if target is tensor else _copier(tensor, target))

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None
    ) -> KeepstepWork:
        self._cpu(inputs, "all_gather")
        current, group = self._enter("all_gather")
        source = dense(inputs[0])
        stand_ins, finish = self._staged(outputs[0])
        address, size = piece(source)
        self._same_bytes("all_gather", size, stand_ins)
        op = current.comm.all_gather(group, address, [t.data_ptr() for t in stand_ins], size, self._timeout_ns(options))
        return KeepstepWork(current, op, outputs[0], (source, stand_ins), finish)

    @staticmethod
    def _same_bytes(what: str, size: int, tensors: list[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            if piece(tensor)[1] != size:
                raise ValueError(f"{what}: tensor {number} has {piece(tensor)[1]} bytes where {size} are exchanged")

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> KeepstepWork:
        self._cpu([output, input], "all_gather_into_tensor")
        current, group = self._enter("all_gather_into_tensor")
        source = dense(input)
        (stand_in,), finish = self._staged([output])
        address, size = piece(source)
        if piece(stand_in)[1] != size * self.size():
            raise ValueError(
                f"all_gather_into_tensor: the output has {piece(stand_in)[1]} bytes, {size * self.size()} are gathered"
            )
        targets = [stand_in.data_ptr() + rank * size for rank in range(self.size())]
        op = current.comm.all_gather(group, address, targets, size, self._timeout_ns(options))
        return KeepstepWork(current, op, [output], (source, stand_in), finish)

    all_gather_single = _allgather_base

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any = None
    ) -> KeepstepWork:
        self._cpu(outputs, "reduce_scatter")
        current, group = self._enter("reduce_scatter")
        sources = [dense(tensor) for tensor in inputs[0]]
        (stand_in,), finish = self._staged([outputs[0]])
        op = current.comm.reduce_scatter(
            group,
            [t.data_ptr() for t in sources],
            stand_in.data_ptr(),
            stand_in.numel(),
            self._dtype(stand_in, "reduce_scatter"),
            self._op(options, "reduce_scatter"),
            self._timeout_ns(options),
        )
        return KeepstepWork(current, op, outputs, (sources, stand_in), finish)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, options: Any = None) -> KeepstepWork:
        pieces = list(dense(input).view(-1).chunk(self.size()))
        return self.reduce_scatter([output], [pieces], options)

    reduce_scatter_single = _reduce_scatter_base

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any) -> KeepstepWork:
        self._cpu(inputs, "gather")
        current, group = self._enter("gather")
        source = dense(inputs[0])
        stand_ins, finish = self._staged(outputs[0] if outputs else [])
        address, size = piece(source)
        op = current.comm.gather(
            group, address, [t.data_ptr() for t in stand_ins], size, options.rootRank, self._timeout_ns(options)
        )
        return KeepstepWork(current, op, outputs[0] if outputs else [], (source, stand_ins), finish)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any) -> KeepstepWork:
        self._cpu(outputs, "scatter")
        current, group = self._enter("scatter")
        sources = [dense(tensor) for tensor in (inputs[0] if inputs else [])]
        (stand_in,), finish = self._staged([outputs[0]])
        address, size = piece(stand_in)
        op = current.comm.scatter(
            group, [t.data_ptr() for t in sources], address, size, options.rootRank, self._timeout_ns(options)
        )
        return KeepstepWork(current, op, outputs, (sources, stand_in), finish)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any = None) -> KeepstepWork:
        self._cpu([*outputs, *inputs], "all_to_all")
        current, group = self._enter("all_to_all")
        sources = [dense(tensor) for tensor in inputs]
        stand_ins, finish = self._staged(outputs)
        op = current.comm.all_to_all(
            group,
            [t.data_ptr() for t in sources],
            [piece(t)[1] for t in sources],
            [t.data_ptr() for t in stand_ins],
            [piece(t)[1] for t in stand_ins],
            self._timeout_ns(options),
        )
        return KeepstepWork(current, op, outputs, (sources, stand_ins), finish)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        options: Any = None,
    ) -> KeepstepWork:
        (stand_in,), finish = self._staged([output])
        source = dense(input)
        world = self.size()
        outputs = list(torch.split(stand_in, output_splits or [stand_in.shape[0] // world] * world))
        inputs = list(torch.split(source, input_splits or [source.shape[0] // world] * world))
        work = self.alltoall(outputs, inputs, options)
        work._keep = (source, stand_in)
        work._finish = finish
        work._result = [output]
        return work

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> KeepstepWork:  # torch names this one
        current, group = self._enter("barrier")
        op = current.comm.barrier(group, self._timeout_ns(opts))
        return KeepstepWork(current, op, [], None, raises=True)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> KeepstepWork:
        self._cpu(tensors, "send")
        current, group = self._enter("send")
        source = dense(tensors[0])
        address, size = piece(source)
        return KeepstepWork(current, current.comm.send(group, address, size, to, tag, -1), tensors, source)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> KeepstepWork:
        self._cpu(tensors, "recv")
        current, group = self._enter("recv")
        (stand_in,), finish = self._staged([tensors[0]])
        address, size = piece(stand_in)
        return KeepstepWork(
            current, current.comm.receive(group, address, size, source, tag, -1), tensors, stand_in, finish
        )


def _copier(target: torch.Tensor, source: torch.Tensor) -> Any:
    def copy() -> None:
        with torch.no_grad():
            target.copy_(source)

    return copy


def _create(options: Any, backend_options: Any = None) -> KeepstepBackend:
    current = session('init_process_group(backend="keepstep")')
    from keepstep.torch.run import form_for_process_group

    form_for_process_group(current)
    ranks = list(options.global_ranks_in_group) or None
    if ranks is not None and current.assignment is not None and ranks == list(range(current.assignment.world_size)):
        ranks = None if options.group_id == "0" else ranks
    return KeepstepBackend(options.group_rank, options.group_size, ranks, str(options.group_id), options.timeout)


def register_backend() -> None:
    """Makes ``backend="keepstep"`` known to torch.distributed; once per process."""
    if "KEEPSTEP" not in dist.Backend._plugins:
        dist.Backend.register_backend("keepstep", _create, extended_api=True, devices=["cpu"])
