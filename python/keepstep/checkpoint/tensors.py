"""Reads whole tensors of a checkpoint into memory, gathered from the parts that ranks wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator

from keepstep import _checkpoint
from keepstep.checkpoint.destinations import Opened

BATCH_BYTES = 256 << 20


def bytes_of(tensor: _checkpoint.TensorEntry) -> int:
    return math.prod(tensor.shape) * _checkpoint.dtype_bytes(tensor.dtype)


def batches(opened: Opened, names: list[str]) -> Iterator[list[str]]:
    """Groups tensors into batches of up to BATCH_BYTES, each with at least one tensor."""
    batch: list[str] = []
    held = 0
    for name in names:
        size = bytes_of(opened.tensors[name])
        if batch and held + size > BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += size
    if batch:
        yield batch


def read_into(opened: Opened, addresses: dict[str, int]) -> None:
    """Reads each tensor to its address, in C order without gaps, and checks it against the manifest."""
    if opened.manifest is None:
        from keepstep.torch.checkpoint import plain  # only torch can read what DCP itself wrote

        plain.read_into(opened, addresses)
        return
    boxes = []
    for name, address in addresses.items():
        tensor = opened.tensors[name]
        width = _checkpoint.dtype_bytes(tensor.dtype)
        strides = [width] * len(tensor.shape)
        for i in reversed(range(len(strides) - 1)):
            strides[i] = strides[i + 1] * tensor.shape[i + 1]
        for part in tensor.parts:
            assert part.data is not None  # a manifest has it for every part
            at = address + sum(offset * stride for offset, stride in zip(part.offsets, strides, strict=True))
            zeros = [0] * len(strides)
            boxes.append((part.extent.file, part.data, width, part.lengths, zeros, part.lengths, at, strides))
    opened.files().read_boxes(boxes)
