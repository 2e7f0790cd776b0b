"""Data that is found, not replayed: corpora of tokens, mapped once per node, whose position is one number.

`TokenDataset`, `Blend` and `cached` come from keepstep.torch, which is imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.data.chat import write_chat as write_chat
    from keepstep.torch.blend import Blend as Blend
    from keepstep.torch.cached import cached as cached
    from keepstep.torch.packed_dataset import PackedDataset as PackedDataset
    from keepstep.torch.packed_dataset import document_mask as document_mask
    from keepstep.torch.token_dataset import TokenDataset as TokenDataset

__all__ = ["Blend", "PackedDataset", "TokenDataset", "cached", "document_mask", "write_chat"]

_WHERE = {
    "Blend": "keepstep.torch.blend",
    "PackedDataset": "keepstep.torch.packed_dataset",
    "TokenDataset": "keepstep.torch.token_dataset",
    "cached": "keepstep.torch.cached",
    "document_mask": "keepstep.torch.packed_dataset",
    "write_chat": "keepstep.data.chat",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'keepstep.data' has no attribute '{name}'")
