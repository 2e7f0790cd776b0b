"""Checkpoints that DCP itself wrote: each item as torch.save wrote it, without a manifest or checksums."""

from __future__ import annotations

import ctypes
import io
from typing import Any

import torch

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.destinations import Opened
from keepstep.torch.checkpoint.layouts import dtype_of


def item_bytes(opened: Opened, extent: _checkpoint.Extent) -> bytes:
    """One item as torch.save wrote it."""
    data = opened.store.read(opened.folder + opened.layout.files[extent.file], extent.offset, extent.bytes)
    if not extent.transforms:
        return data
    from torch.distributed.checkpoint._extension import ExtensionRegistry

    stream: Any = io.BytesIO(data)
    try:
        for extension in ExtensionRegistry().from_descriptor_list(extent.transforms):
            stream = extension.transform_from(stream)  # type: ignore[attr-defined]
        return bytes(stream.read(-1))
    except Exception as error:
        why = f"data written through {extent.transforms} cannot be read: {error}"
        raise KeepstepError(f"{opened.words}: {why}") from None


def tensor_of(opened: Opened, name: str, extent: _checkpoint.Extent) -> torch.Tensor:
    """One part of a tensor."""
    where = f"bytes {extent.offset} to {extent.offset + extent.bytes} of '{opened.layout.files[extent.file]}'"
    try:
        saved = torch.load(io.BytesIO(item_bytes(opened, extent)), map_location="cpu", weights_only=True)
    except _checkpoint.Error:
        raise
    except Exception as error:
        raise KeepstepError(f"{opened.words}: '{name}' ({where}) cannot be loaded: {error}") from None
    if not isinstance(saved, torch.Tensor):
        raise KeepstepError(f"{opened.words}: '{name}' ({where}) is no tensor")
    return saved


def read_into(opened: Opened, addresses: dict[str, int]) -> None:
    """Whole tensors by name, each to its address."""
    for name, address in addresses.items():
        entry = opened.tensors[name]
        dtype = dtype_of(entry.dtype)
        size = torch.Size(entry.shape).numel() * dtype.itemsize
        if not size:
            continue
        memory = (ctypes.c_char * size).from_address(address)
        whole = torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(entry.shape)
        for part in entry.parts:
            box = tuple(slice(at, at + length) for at, length in zip(part.offsets, part.lengths, strict=True))
            saved = tensor_of(opened, name, part.extent)
            if list(saved.shape) != list(part.lengths) or saved.dtype != dtype:
                raise KeepstepError(f"{opened.words}: a part of '{name}' is not what .metadata says of it")
            whole[box] = saved
