"""Tensors of a safetensors file in memory, without a copy."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch

from keepstep.checkpoint.safetensors import Tensor

Tensors = dict[str, torch.Tensor]


def tensors(file: mmap.mmap, layout: Mapping[str, Tensor]) -> Tensors:
    """Views into `file`, which each of them keeps mapped."""
    whole = torch.frombuffer(file, dtype=torch.uint8)
    return {
        name: whole[each.begin : each.begin + each.bytes].view(getattr(torch, each.dtype)).view(each.shape)
        for name, each in layout.items()
    }
