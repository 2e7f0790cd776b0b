"""Data that is looked up, not replayed: token corpora, mapped once per node, whose position is a single number.

`TokenDataset`, `Blend` and `cached` come from keepstep.torch, which is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.data.chat import write_chat as write_chat
    from keepstep.torch.data.blend import Blend as Blend
    from keepstep.torch.data.cached import cached as cached
    from keepstep.torch.data.packed_dataset import PackedDataset as PackedDataset
    from keepstep.torch.data.packed_dataset import document_mask as document_mask
    from keepstep.torch.data.preference_pairs import PreferencePairs as PreferencePairs
    from keepstep.torch.data.token_dataset import TokenDataset as TokenDataset

__all__ = ["Blend", "PackedDataset", "PreferencePairs", "TokenDataset", "cached", "document_mask", "write_chat"]

_WHERE = {
    "Blend": "keepstep.torch.data.blend",
    "PackedDataset": "keepstep.torch.data.packed_dataset",
    "PreferencePairs": "keepstep.torch.data.preference_pairs",
    "TokenDataset": "keepstep.torch.data.token_dataset",
    "cached": "keepstep.torch.data.cached",
    "document_mask": "keepstep.torch.data.packed_dataset",
    "write_chat": "keepstep.data.chat",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'keepstep.data' has no attribute '{name}'")
