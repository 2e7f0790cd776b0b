"""Between the layout of a checkpoint as the engine knows it and DCP's Metadata."""

from __future__ import annotations

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from keepstep import _checkpoint
from keepstep._errors import KeepstepError


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise KeepstepError(f"this torch ({torch.__version__}) has no dtype '{name}'; a newer one wrote the checkpoint")
    return dtype


def metadata_of(layout: _checkpoint.Layout) -> Metadata:
    """What DCP's planners need to know of a checkpoint."""
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for name, tensor in layout.tensors.items():
        entries[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype_of(tensor.dtype)),
            size=torch.Size(tensor.shape),
            chunks=[ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.lengths)) for part in tensor.parts],
        )
        paths[name] = tuple(tensor.path)
    for name, found in layout.objects.items():
        entries[name] = BytesStorageMetadata()
        paths[name] = tuple(found.path)
    return Metadata(entries, planner_data=paths if any(paths.values()) else None)
