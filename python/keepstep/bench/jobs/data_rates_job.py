"""The sides of `keepstep bench data` in turns: makes batches for some seconds each and prints a JSON line per turn.

CPU time is that of all threads of this process within the measured seconds, for the DataLoader also that of its
workers, as counted by the kernel's scheduler (/proc/PID/task/TID/schedstat).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch


def children_cpu_seconds() -> float:
    """CPU time so far of all threads of this process's children."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ran = [path.read_text() for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(text.split()[0]) for text in ran) / 1e9


class Memmap(torch.utils.data.Dataset[Any]):
    """The plain way: slices a sample out of a numpy.memmap and copies it."""

    def __init__(self, prefix: str, sequence_length: int, dtype: str) -> None:
        self.tokens = numpy.memmap(prefix + ".bin", dtype=numpy.uint16, mode="r")
        self.sequence_length = sequence_length
        self.dtype = numpy.dtype(dtype)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, sample: int) -> torch.Tensor:
        begin = sample * self.sequence_length
        return torch.from_numpy(self.tokens[begin : begin + self.sequence_length + 1].astype(self.dtype))


Batches = Iterator[tuple[int, bool]]  # tokens; whether it was late


def of_keepstep(chosen: argparse.Namespace) -> Batches:
    """What `run.steps` does on one rank: read-ahead, order, batches."""
    from keepstep.data import TokenDataset
    from keepstep.torch.data.data_waits import DataWaits
    from keepstep.torch.step.batch_plan import BatchPlan

    dtype = torch.int64 if chosen.dtype == "int64" else None
    data = TokenDataset(chosen.prefix, chosen.sequence_length, dtype=dtype)
    plan = BatchPlan(data, 8 * chosen.batch, chosen.batch, True, None, 7, 0, 1)
    step = 0
    while True:
        step += 1
        plan.read_ahead(step)
        samples = plan.samples(step)
        for first in range(0, len(samples), chosen.batch):
            waits = DataWaits()
            with waits:
                batch = plan.batch(samples[first : first + chosen.batch])
            yield batch.numel(), bool(waits.batches)


def of_dataloader(chosen: argparse.Namespace) -> Batches:
    data = Memmap(chosen.prefix, chosen.sequence_length, chosen.dtype)
    generator = torch.Generator().manual_seed(7)
    loader = torch.utils.data.DataLoader(
        data, chosen.batch, shuffle=True, generator=generator, num_workers=chosen.workers, persistent_workers=True,
        drop_last=True,
    )  # fmt: skip
    while True:
        for batch in loader:
            yield batch.numel(), False


def of_memcpy(chosen: argparse.Namespace) -> Batches:
    """The same bytes in the same order with memcpy alone: one loop in C over rows, in a precomputed order.

    For int64 the rows come from a file of int64: as many bytes as the batch has.
    """
    from keepstep import _engine

    width = chosen.sequence_length
    dtype = numpy.dtype(chosen.dtype)
    file: Any = numpy.memmap(chosen.prefix + ".bin", dtype=numpy.uint8, mode="r")
    count = len(file) // (width * dtype.itemsize)
    rows = numpy.asarray(file[: count * width * dtype.itemsize]).view(dtype).reshape(count, width)
    whole = count - count % chosen.batch
    order = [numpy.array(_engine.samples_at(7, at, chosen.batch, count)) for at in range(0, whole, chosen.batch)]
    while True:
        for numbers in order:
            out = numpy.empty((chosen.batch, width), dtype)
            numpy.take(rows, numbers, axis=0, out=out, mode="clip")
            yield out.size, False


SIDES: dict[str, Callable[[argparse.Namespace], Batches]] = {
    "keepstep": of_keepstep,
    "dataloader": of_dataloader,
    "memcpy": of_memcpy,
}


def turn(side: str, made: Batches, seconds: float, most: int) -> dict[str, Any]:
    """Makes batches for `seconds`, at most `most`."""
    tokens = late = batches = 0
    has_workers = side == "dataloader"  # whose work in other turns must not count there
    cpu_s = time.process_time() + (children_cpu_seconds() if has_workers else 0)
    began = time.perf_counter()
    end = began + seconds
    while batches < most and time.perf_counter() < end:
        count, was_late = next(made)
        tokens += count
        late += was_late
        batches += 1
    wall_s = time.perf_counter() - began
    cpu_s = time.process_time() + (children_cpu_seconds() if has_workers else 0) - cpu_s
    return {
        "side": side,
        "tokens": tokens,
        "batches": batches,
        "late_batches": late,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
    }


def main(chosen: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    epoch = (os.path.getsize(chosen.prefix + ".bin") // 2 - 1) // chosen.sequence_length // chosen.batch
    sides = chosen.sides.split(",")
    made = {side: SIDES[side](chosen) for side in sides}
    if chosen.cold:
        # Each page may be read from the disk only once, so a turn ends before the epoch does.
        (side,) = sides
        next(made[side])
        print(json.dumps(turn(side, made[side], chosen.seconds, epoch - 32)))
        return
    numpy.memmap(chosen.prefix + ".bin", dtype=numpy.uint8, mode="r")[::4096].sum()
    for side in sides:  # a warm-up of an epoch or a turn's length: maps pages, allocates buffers
        turn(side, made[side], chosen.seconds, epoch)
    for number in range(chosen.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            print(json.dumps(turn(side, made[side], chosen.seconds, 1 << 62)))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--sides", required=True, help=", ".join(SIDES))
    options.add_argument("--prefix", required=True)
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--dtype", required=True)
    options.add_argument("--sequence-length", type=int, required=True)
    options.add_argument("--seconds", type=float, required=True)
    options.add_argument("--rounds", type=int, required=True)
    options.add_argument("--workers", type=int, required=True)
    options.add_argument("--cold", action="store_true")
    main(options.parse_args())
