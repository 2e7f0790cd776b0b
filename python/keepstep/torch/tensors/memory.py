"""Tensors as pieces of memory: addresses for the engine, with staging where a tensor is not dense."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from keepstep._errors import KeepstepError

Piece = tuple[int, int]  # address, bytes
Region = tuple[int, int, int]  # address, bytes, number of the CUDA device; -1: main memory


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself if its bytes are contiguous in row-major order, else a copy that is."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def piece(tensor: torch.Tensor) -> Piece:
    """Address and size of a dense CPU tensor."""
    if tensor.device.type != "cpu":
        raise KeepstepError(
            f"keepstep moves tensors in main memory; this one is on {tensor.device}, which this version cannot carry"
        )
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def region(tensor: torch.Tensor) -> Region:
    """A dense tensor's memory, for the engine's copies; it must be on the CPU or on a CUDA device."""
    size = tensor.numel() * tensor.element_size()
    if tensor.device.type == "cuda":
        return tensor.data_ptr(), size, tensor.device.index
    return (*piece(tensor), -1)


def raw_bytes(tensors: list[torch.Tensor]) -> list[bytes]:
    """The bytes of each tensor, wherever it is: those on one device come over in one copy."""
    result = [b""] * len(tensors)
    elsewhere: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.device.type == "cpu":
            whole_tensor = dense(tensor.detach())  # held: an address alone does not keep a copy alive
            result[number] = ctypes.string_at(*piece(whole_tensor))
        else:
            elsewhere.setdefault(tensor.device, []).append(number)
    for numbers in elsewhere.values():
        flat = [dense(tensors[number].detach()).reshape(-1).view(torch.uint8) for number in numbers]
        together = torch.cat(flat).cpu()
        whole = ctypes.string_at(*piece(together))
        at = 0
        for number, part in zip(numbers, flat, strict=True):
            result[number] = whole[at : at + part.numel()]
            at += part.numel()
    return result


def on_cpu(tensors: list[torch.Tensor], what: str) -> None:
    """TypeError unless all are dense-layout CPU tensors."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise TypeError(f'{what}: backend "keepstep" moves CPU tensors; this one is on {tensor.device}')
        if tensor.layout is not torch.strided:
            raise TypeError(f'{what}: backend "keepstep" does not move tensors of layout {tensor.layout}')


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Also works in a thread without the caller's torch modes."""
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(source)


def staged(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None] | None]:
    """Dense stand-ins for outputs, and what copies them back (None if all are dense themselves)."""
    stand_ins = [
        tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    pairs = [(t, s) for t, s in zip(tensors, stand_ins, strict=True) if t is not s]

    def copy_back() -> None:
        for tensor, stand_in in pairs:
            copy_into(tensor, stand_in)

    return stand_ins, (copy_back if pairs else None)


def copier(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None] | None:
    """What copies `source` into `target`; None if they are the same."""
    if target is source:
        return None

    return functools.partial(copy_into, target, source)
