"""What all ranks of a process group agree on."""

from __future__ import annotations

import torch
import torch.distributed as dist


def number_for_all(value: int) -> torch.Tensor:
    """`value` where the world's process group can reduce it."""
    group = dist.group.WORLD
    devices = [] if group is None else group._device_types
    cpu = torch.device("cpu")
    return torch.tensor([value], dtype=torch.int64, device=cpu if cpu in devices or not devices else devices[0])


def any_rank(value: bool) -> bool:
    """Whether it is true on any rank; without a process group, here."""
    if not dist.is_available() or not dist.is_initialized():
        return value
    flag = number_for_all(int(value))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def sum_of_ranks(value: int) -> int:
    """The sum of what all ranks give; without a process group, `value`."""
    if not dist.is_initialized():
        return value
    total = number_for_all(value)
    dist.all_reduce(total)
    return int(total.item())
