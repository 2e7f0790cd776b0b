"""What all ranks of a process group agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

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


def numbers_of_ranks(*values: float) -> list[list[float]]:
    """What each rank gives, as float64, by rank; all give as many. Without a process group, `values` alone."""
    if not dist.is_initialized():
        return [list(values)]
    table = number_for_all(0).double().repeat(dist.get_world_size(), len(values))
    table[dist.get_rank()] = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(table)
    numbers: list[list[float]] = table.tolist()
    return numbers


def mark_of(data: bytes) -> int:
    """A number by which `numbers_of_ranks` tells whether all ranks have the same `data`; float64 holds it exactly."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "little")


def names_on_any_rank(here: Collection[str], known: Collection[str]) -> set[str]:
    """Those of `known` that are `here` on any rank. Where ranks know different names and any is `here`, all of them."""
    order = sorted(known)
    rows = numbers_of_ranks(mark_of("\n".join(order).encode()), bool(here))
    if not any(row[1] for row in rows):
        return set()
    if any(row[0] != rows[0][0] for row in rows):
        return set(order)
    of_ranks = zip(*numbers_of_ranks(*(name in here for name in order)), strict=True)
    return {name for name, flags in zip(order, of_ranks, strict=True) if any(flags)}


def sum_of_ranks(value: int) -> int:
    """The sum of what all ranks give; without a process group, `value`."""
    if not dist.is_initialized():
        return value
    total = number_for_all(value)
    dist.all_reduce(total)
    return int(total.item())
