"""What both jobs of `keepstep bench checkpoint` train: the same sharded tensors, and computing steps of equal length.

The state is a stack of transformer layers under FSDP2, with AdamW's moments. A step multiplies matrices without using
the weights, so its length does not depend on their number. The update changes every byte of the state.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

LAYERS = 12
SIDE = 384  # of the matrices that a step multiplies: a few milliseconds per product
COPIES_OF_A_PARAMETER = 3  # itself and AdamW's two moments, all float32
WIRE_CHUNK = 16 << 20  # bytes per call, so no time is lost waiting for the interpreter


class Layer(torch.nn.Module):
    """The parameters of a transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.attention = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)


def build(world: int, bytes_per_rank: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Sharded over all ranks; each holds about `bytes_per_rank`, including moments. Needs a process group."""
    width = round(math.sqrt(bytes_per_rank * world / (4 * COPIES_OF_A_PARAMETER * 12 * LAYERS)))
    with torch.device("meta"):
        model = torch.nn.Sequential(*(Layer(width) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter._local_tensor.fill_(0.5)  # type: ignore[attr-defined]
            optimizer.state[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return model, optimizer


class State:
    """The tensors of this rank, to be updated and copied."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.tensors: dict[str, Tensor] = {}  # DTensors, as DCP accepts them
        for parameter in model.parameters():
            self.tensors[f"model.{names[id(parameter)]}"] = parameter.data
            for key, value in optimizer.state[parameter].items():
                if value.dim() > 0:
                    self.tensors[f"optimizer.{names[id(parameter)]}.{key}"] = value
        self.local = [tensor._local_tensor for tensor in self.tensors.values()]  # type: ignore[attr-defined]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.local)
        self._aside: list[Tensor] = []

    def prepare_aside(self) -> None:
        """Call before `copy_aside`."""
        self._aside = [torch.ones(self.bytes, dtype=torch.uint8) for _ in range(2)]

    def update(self) -> None:
        """Accesses memory like an optimizer: reads and writes every byte of the state."""
        with torch.no_grad():
            torch._foreach_mul_(self.local, 0.999)

    def copy_aside(self) -> None:
        """One memcpy of as many bytes between existing buffers, without the interpreter."""
        to, source = self._aside
        ctypes.memmove(to.data_ptr(), source.data_ptr(), self.bytes)


class Compute:
    """Matrix products, as many as take a step's time when all ranks compute at once."""

    def __init__(self) -> None:
        self._a, self._b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        self._out = torch.empty(SIDE, SIDE)
        self._count = 0

    def agree(self, seconds: float) -> None:
        """Determines the number of products. All ranks call it."""
        dist.barrier()
        until = time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < until:
            torch.mm(self._a, self._b, out=self._out)
            done += 1
        count = torch.tensor([done])
        dist.all_reduce(count)
        self._count = max(1, int(count.item()) // dist.get_world_size())

    def run(self) -> float:
        """Computes one step; returns the seconds it took."""
        began = time.perf_counter()
        for _ in range(self._count):
            torch.mm(self._a, self._b, out=self._out)
        return time.perf_counter() - began


class Stopwatch:
    """Adds up the time, and this thread's CPU time, of everything done under it."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began[0]
        self.cpu_seconds += time.thread_time() - self._began[1]


class Beside:
    """A thread that runs `work` while the step computes."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.seconds = 0.0
        self._error: BaseException | None = None

        def timed() -> None:
            began = time.perf_counter()
            try:
                work()
            except BaseException as error:
                self._error = error
            self.seconds = time.perf_counter() - began

        self._thread = threading.Thread(target=timed)
        self._thread.start()

    def join(self) -> float:
        """Returns the seconds it took."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.seconds


class Loopback:
    """A TCP connection to ourselves: measures what the kernel needs for as many bytes, and nothing else."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._out = socket.create_connection(listener.getsockname())
            self._in, _ = listener.accept()
        self._chunk = bytearray(WIRE_CHUNK)
        self._room = bytearray(WIRE_CHUNK)

    def carry(self, total: int) -> None:
        """Sends `total` bytes and receives them."""
        receiver = Beside(lambda: self._receive(total))
        view = memoryview(self._chunk)
        for at in range(0, total, WIRE_CHUNK):
            self._out.sendall(view[: min(WIRE_CHUNK, total - at)])
        receiver.join()

    def _receive(self, total: int) -> None:
        while total > 0:
            total -= self._in.recv_into(self._room, min(WIRE_CHUNK, total), socket.MSG_WAITALL)


def cpu_seconds() -> float:
    """CPU time so far of this process and of those it started."""
    total = time.process_time()
    ticks = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            for pid in (task / "children").read_text().split():
                with contextlib.suppress(OSError):  # the process has ended
                    fields = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
                    total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="folder: rank N writes rankN.json")
    parser.add_argument("--bytes", type=int, required=True, help="of state per rank")
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    return parser
