"""The ranks of the doctor's own job: all_reduce within a node over shared memory, and between nodes over TLS.

Two nodes with two ranks each, all on this machine. Rank 0 prints a line of JSON with the bytes per second of each.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from keepstep.doctor.jobs import marks

BYTES = 64 << 20  # per tensor
ROUNDS = 2


def numbers(rank: int) -> torch.Tensor:
    """Small integers, so sums are exact; they differ by position and by rank."""
    return torch.arange(BYTES // 4, dtype=torch.int32).remainder_(1021).add_(rank).to(torch.float32)


def rate(name: str, group: dist.ProcessGroup, members: list[int]) -> float:
    """Bytes per second, counting the bytes of one tensor. Raises RuntimeError if a sum is wrong."""
    right = numbers(0).mul_(len(members)).add_(sum(members))
    seconds = 0.0
    for _ in range(ROUNDS):
        tensor = numbers(dist.get_rank())
        dist.barrier(group)
        begun = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        seconds += time.perf_counter() - begun
        wrong = int((tensor != right).sum())
        if wrong:
            raise RuntimeError(f"{wrong} of {tensor.numel()} sums over {name} are wrong")
    return ROUNDS * BYTES / seconds


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("keepstep")
    rank = dist.get_rank()
    rates = {}
    for name, members in (("shared memory", [0, 1]), ("TLS", [0, 2])):
        group = dist.new_group(members)  # called on all ranks, even those outside the group
        if isinstance(group, dist.ProcessGroup):  # this rank is a member
            rates[name] = rate(name, group, members)
    dist.barrier()
    if rank == 0:
        marks.say(marks.LOOPBACK, {"bytes": ROUNDS * BYTES, "bytes_per_s": rates})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
