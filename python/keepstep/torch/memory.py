"""Tensors as pieces of memory: addresses for the engine, with staging where a tensor is not dense."""

from __future__ import annotations

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
