"""Calls with several tensors per rank, as in torch's older interface: all of one type and size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from keepstep.torch.tensors.memory import copy_into

Tensors = list[torch.Tensor]

_TOGETHER = {
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def reduced_here(tensors: Tensors, options: Any) -> torch.Tensor:
    """This rank's tensors reduced to one, in their order. For an average, their sum: like Gloo's, it is over ranks."""
    op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
    together: Callable[..., torch.Tensor] = next((f for known, f in _TOGETHER.items() if op == known), torch.add)
    total = tensors[0].detach().clone(memory_format=torch.contiguous_format)
    for tensor in tensors[1:]:
        total = together(total, tensor.detach())
    return total


def copy_to_all(tensors: Tensors, source: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor is not source:
            copy_into(tensor, source)


def overlapping(tensors: Tensors) -> set[int]:
    """The indices of those that share memory with one of a lower index."""
    found: set[int] = set()
    spans = []
    for number, tensor in enumerate(tensors):
        if tensor.numel() > 0:
            elements = 1 + sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            spans.append((tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size(), number))
    spans.sort()
    reach: list[tuple[int, int]] = []  # of those before: (end, number)
    for begin, end, number in spans:
        reach = [(other_end, other) for other_end, other in reach if other_end > begin]
        for _, other in reach:
            found.add(max(number, other))
        reach.append((end, number))
    return found


def apart(tensors: Tensors) -> Tensors:
    """`tensors`, with copies in place of those that share memory with one before them."""
    shared = overlapping(tensors)
    return [tensor.detach().clone() if number in shared else tensor for number, tensor in enumerate(tensors)]


def spread(outputs: list[Tensors], gathered: Tensors) -> None:
    """gathered[rank][i] is input i of that rank; each list of `outputs` gets all of them, rank after rank."""
    flat = [one for of_rank in gathered for one in of_rank.unbind(0)]
    for output in outputs:
        for tensor, one in zip(output, flat, strict=True):
            copy_into(tensor, one)
