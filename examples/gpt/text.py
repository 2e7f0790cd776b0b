"""The training text: the source of Python's standard library, which every machine that runs this already has."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}


def standard_library(limit_bytes: int) -> bytearray:
    """The .py files of the running interpreter's standard library, in the order of their paths, one after another.

    At most ``limit_bytes``; the same on every machine with the same Python release.
    """
    text = bytearray()
    for folder, below, files in os.walk(sysconfig.get_path("stdlib")):
        below[:] = sorted(name for name in below if name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            text += Path(folder, name).read_bytes()
            if len(text) >= limit_bytes:
                return text[:limit_bytes]
    return text


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Non-overlapping windows of the text. Sample i is (bytes, the bytes one place further), int64[context] each."""

    def __init__(self, context: int, limit_bytes: int = 4 << 20) -> None:
        self.context = context
        self.bytes = torch.frombuffer(standard_library(limit_bytes), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = index * self.context
        window = self.bytes[start : start + self.context + 1].long()
        return window[:-1], window[1:]
