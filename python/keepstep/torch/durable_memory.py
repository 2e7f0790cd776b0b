"""Memory for one snapshot that another process can go on reading when this one is gone."""

from __future__ import annotations

import mmap
import os
import weakref

import torch

from keepstep._errors import KeepstepError
from keepstep.checkpoint.drain import packets

Buffers = dict[str, torch.Tensor]

_ALIGNMENT = 64


class Memory:
    """Tensors of the host side by side, as those of `held` are; nothing is copied.

    `fd`: its descriptor, while this object lives. `address`, `bytes`: where this process has it.
    """

    def __init__(self, held: Buffers) -> None:
        offsets: dict[str, int] = {}
        end = 0
        for name, tensor in held.items():
            offsets[name] = end
            end += -(-tensor.numel() * tensor.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.bytes = max(end, 1)
        try:
            self.fd = packets.memory("keepstep-snapshot", self.bytes)
        except OSError as error:
            raise KeepstepError(f"no memory for a copy of the state, {self.bytes} bytes: {error}") from None
        weakref.finalize(self, os.close, self.fd)
        whole = torch.frombuffer(mmap.mmap(self.fd, self.bytes), dtype=torch.uint8)
        self.address = whole.data_ptr()
        self.tensors: Buffers = {}
        for name, tensor in held.items():
            size = tensor.numel() * tensor.dtype.itemsize
            part = whole[offsets[name] : offsets[name] + size]
            self.tensors[name] = part.view(tensor.dtype).view(tensor.shape)
