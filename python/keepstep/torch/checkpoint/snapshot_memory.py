"""Memory for one snapshot that another process can still read after this one is gone."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref

import torch

from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import packets

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
        self._close = weakref.finalize(self, os.close, self.fd)
        _living.add(self)
        mapped = mmap.mmap(self.fd, self.bytes)
        # Forked data-loading processes would keep this memory alive after us, or copy it.
        mapped.madvise(mmap.MADV_DONTFORK)
        self._descriptors = _same_as(self.fd)  # the mapping has one of its own
        whole = torch.frombuffer(mapped, dtype=torch.uint8)
        self.address = whole.data_ptr()
        self.tensors: Buffers = {}
        for name, tensor in held.items():
            size = tensor.numel() * tensor.dtype.itemsize
            part = whole[offsets[name] : offsets[name] + size]
            self.tensors[name] = part.view(tensor.dtype).view(tensor.shape)


_living: weakref.WeakSet[Memory] = weakref.WeakSet()
_of_the_parent: list[Memory] = []  # never unmapped: that would unmap what took its place


def _same_as(fd: int) -> list[int]:
    """All descriptors of this process for what `fd` is one for."""
    wanted, found = os.fstat(fd), []
    for each in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list, or of another thread
            if os.path.samestat(os.fstat(each), wanted):
                found.append(each)
    return found


def _let_go_in_child() -> None:
    for memory in list(_living):
        memory._close.detach()
        for fd in memory._descriptors:
            os.close(fd)
        _of_the_parent.append(memory)


os.register_at_fork(after_in_child=_let_go_in_child)
