"""What ranks exchange during a save, as bytes: DCP's plans and results, and nothing else.

DCP's classes are written by pickle, as DCP itself sends them, and read by an unpickler that knows these classes,
torch's dtypes and plain data. Anything else is refused by name before it is made.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from keepstep._errors import KeepstepError

MAX_BYTES = 1 << 30

_CLASSES = {
    "torch.distributed.checkpoint.planner": {
        "SavePlan", "WriteItem", "WriteItemType", "BytesIOWriteData", "TensorWriteData",
    },
    "torch.distributed.checkpoint.metadata": {
        "MetadataIndex", "ChunkStorageMetadata", "TensorProperties", "TensorStorageMetadata", "BytesStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.storage": {"WriteResult"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "keepstep.torch.checkpoint.snapshot": {"Small"},
    "keepstep.torch.checkpoint.writer": {"_Assignment", "_Written"},
    "keepstep._checkpoint": {"FileSums"},
    "keepstep._errors": {"KeepstepError"},
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _CLASSES.get(module, ()):
            raise KeepstepError(f"a rank sent a {module}.{name} with its part of a checkpoint, which is none of DCP's")
        return super().find_class(module, name)


def packed(value: Any) -> bytes:
    """Of a plan, its results, or what else is listed above."""
    return pickle.dumps(value, protocol=4)


def unpacked(data: bytes) -> Any:
    """KeepstepError: it holds something else, or is too large."""
    if len(data) > MAX_BYTES:
        raise KeepstepError(f"a rank sent {len(data)} bytes with its part of a checkpoint; {MAX_BYTES} is the most")
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError, KeyError) as error:
        raise KeepstepError(f"what a rank sent with its part of a checkpoint cannot be read: {error}") from None
