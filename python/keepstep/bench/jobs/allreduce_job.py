"""One rank of ``keepstep bench allreduce``: the same all_reduce on both backends in turns, and a STREAM triad."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import keepstep.torch  # noqa: F401  (registers the backend)

TRIAD_BYTES = 32 << 20  # per array, of three: far more than the caches of one core
TRIAD_ROUNDS = 12


def triad(group: dist.ProcessGroup) -> float:
    """Bytes per second that each process moves in a = b + s * c while all do (counted like STREAM); the median."""
    count = TRIAD_BYTES // 8
    b, c, a = np.ones(count), np.ones(count), np.empty(count)
    chunk = 1 << 13  # small enough that the data of numpy's two passes stays in the L1 cache
    times = []
    for _ in range(TRIAD_ROUNDS):
        dist.barrier(group)
        begun = time.perf_counter()
        for start in range(0, count, chunk):
            part = slice(start, start + chunk)
            np.multiply(c[part], 3.0, out=a[part])
            np.add(a[part], b[part], out=a[part])
        dist.barrier(group)  # with more processes than cores they run in turn: the last one counts
        times.append(time.perf_counter() - begun)
    return 3 * TRIAD_BYTES / statistics.median(times)


def one_round(tensor: torch.Tensor, group: dist.ProcessGroup, repeats: int) -> float:
    """Seconds per all_reduce, the mean of `repeats` in a row."""
    dist.all_reduce(tensor, group=group)
    dist.barrier(group)
    begun = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - begun) / repeats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "keepstep",
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.world,
        timeout=timedelta(minutes=5),
    )
    ours = dist.group.WORLD
    assert ours is not None
    gloo = dist.new_group(backend="gloo")
    results = []
    for size in (int(part) for part in options.sizes.split(",")):
        tensor = torch.zeros(size // 4)
        probe = torch.tensor([max(one_round(tensor, group, 2) for group in (ours, gloo))])
        dist.all_reduce(probe, op=dist.ReduceOp.MAX)
        repeats = max(1, min(200, int(options.seconds / probe.item())))
        rounds = []
        for _ in range(options.rounds):
            rounds.append([one_round(tensor, ours, repeats), one_round(tensor, gloo, repeats)])
        results.append({"bytes": size, "rounds": rounds})
    bandwidth = triad(ours)
    with open(options.out, "w") as file:
        json.dump({"sizes": results, "triad": bandwidth}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
