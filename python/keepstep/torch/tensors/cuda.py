"""Work that is still on the GPU: what must be finished before a vote, a copy or a new generation.

PyTorch queues work on the GPU and goes on. That is not enough at three times: when a rank says "my gradients are
final"; when the engine's threads, which know no streams, read or write its tensors; when an interrupted step is left.
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
    """Called before a vote: returns once the gradients on `devices` are final, or raises.

    Gradients that look final on the CPU may be wrong in two ways: the GPU is still computing them (if the process died
    after its vote they would be lost, and the others would count a step that never happened), or a collective failed
    and left garbage in them. So this waits for an event on each device's current stream, after everything that an
    optimizer would read, and then asks NCCL for errors. In this order, because an error is noted before the
    collective's kernel ends.

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
    """Waits for all work on all devices that this process uses. No queued work writes a tensor afterwards."""
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

    After an illegal access or a hardware fault every later call fails. Redoing the step in this process is useless, and
    its tensors cannot be read.
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
