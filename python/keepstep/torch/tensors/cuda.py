"""Work that is still on the GPU: what must be finished before a vote, a copy or a new generation.

PyTorch queues work on the GPU and goes on. Three times that is not good enough: a rank says "my gradients are final";
its tensors are read, or written, by the engine's threads, which know no streams; an interrupted step is left.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from keepstep.torch.distributed.nccl import CudaBackend

_events: dict[torch.device, torch.cuda.Event] = {}


def in_use() -> bool:
    """Whether this process has begun to use CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def devices_of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The CUDA devices that `tensors` are on."""
    return sorted(
        {tensor.device for tensor in tensors if tensor.device.type == "cuda"}, key=lambda device: device.index
    )


def settle(devices: Iterable[torch.device], backends: Iterable[CudaBackend]) -> None:
    """Before a vote: returns once the gradients on `devices` are really final, or raises.

    Two things can be wrong with gradients of which the CPU thinks that they are done: the GPU still computes them (a
    process that dies after its vote would take them along, and the others would count a step that never was), or a
    collective failed and left anything in them. So it waits for an event on each device's current stream, behind which
    is all that an optimizer would read, and then asks NCCL for errors. In this order: what fails a collective is noted
    before its kernel lets go.

    Raises:
        torch.distributed.DistBackendError: a communicator has failed.
        RuntimeError: a kernel has failed.
    """
    for device in devices:
        event = _events.get(device)
        if event is None:
            # A blocking event: the thread sleeps, it does not poll.
            event = _events[device] = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        event.synchronize()
    check(backends)


def check(backends: Iterable[CudaBackend]) -> None:
    """Raises `torch.distributed.DistBackendError` if one of `backends` has failed."""
    for backend in backends:
        error: Any = backend.get_error()
        if getattr(error, "name", "SUCCESS") != "SUCCESS":
            raise dist.DistBackendError(
                f"{backend.name()} reported {error.name} before the vote: what its collectives wrote is not to be "
                "trusted, so this rank does not vote"
            )


def synchronize() -> None:
    """Waits for everything on all devices that this process uses. Nothing that is queued writes a tensor afterwards."""
    if in_use():
        for index in range(torch.cuda.device_count()):
            if _has_context(index):
                torch.cuda.synchronize(index)


def _has_context(index: int) -> bool:
    """Whether this process uses the device; synchronizing another one would make a context, of hundreds of MiB."""
    probe = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return index == torch.cuda.current_device() or probe is None or bool(probe(index))


def end_if_broken(error: BaseException) -> None:
    """Ends this process if `error` left it without a usable GPU, so that it is replaced.

    An illegal access or a fault of the hardware stays with the process: every later call fails. To try the step again
    in it is of no use, and its tensors can be read by nobody.
    """
    if not in_use() or not isinstance(error, RuntimeError) or "CUDA" not in str(error):
        return
    try:
        synchronize()
    except RuntimeError as still:
        traceback.print_exception(type(error), error, error.__traceback__)
        print(f"keepstep: this process cannot use its GPU any more ({_first_line(still)}); it ends", file=sys.stderr)
        raise SystemExit(1) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
