"""Tensors as pieces of memory: addresses for the engine, with staging where a tensor is not dense."""

from __future__ import annotations

from collections.abc import Callable

import torch

from keepstep._errors import KeepstepError

Piece = tuple[int, int]  # address, bytes


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself if its bytes lie together in row-major order, else a copy that does."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def piece(tensor: torch.Tensor) -> Piece:
    """Address and size of a dense CPU tensor."""
    if tensor.device.type != "cpu":
        raise KeepstepError(
            f"keepstep moves tensors in main memory; this one is on {tensor.device}, which this version cannot carry"
        )
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def on_cpu(tensors: list[torch.Tensor], what: str) -> None:
    """TypeError unless all are dense-layout CPU tensors."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise TypeError(f'{what}: backend "keepstep" moves CPU tensors; this one is on {tensor.device}')
        if tensor.layout is not torch.strided:
            raise TypeError(f'{what}: backend "keepstep" does not move tensors of layout {tensor.layout}')


def staged(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None] | None]:
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


def copier(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None] | None:
    """What copies `source` into `target`; None if they are the same."""
    if target is source:
        return None

    def copy() -> None:
        with torch.no_grad():
            target.copy_(source)

    return copy
