"""The capsule: what forward changes on each rank by itself (BatchNorm's statistics), at most 1 MiB.

Captured before the vote on a step, kept in the agent's memory for two versions; a redo and a newcomer start from it.
The bytes are a JSON header (names, dtypes, shapes) and the tensors one after the other; nothing is pickled.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterable

import torch

from keepstep._engine import Engine
from keepstep.torch.memory import raw_bytes
from keepstep.torch.registry import Registry

CAPSULE_BYTES = 1 << 20
_HEADER_ROOM = 64 * 1024


class Capsule:
    """The per-rank buffers of the protected modules.

    Every buffer belongs to it, smallest first, as long as all fit; what does not fit is protected like a parameter
    (large buffers are tables and masks, which forward does not change; the checking mode names those that it does).
    """

    def __init__(self, registry: Registry) -> None:
        buffers: dict[str, torch.Tensor] = {}
        for owner, item in registry.objects.items():
            if isinstance(item, torch.nn.Module):
                for name, buffer in item.named_buffers():
                    buffers[f"{owner}/{name}"] = buffer
        self._buffers: dict[str, torch.Tensor] = {}
        room = CAPSULE_BYTES - _HEADER_ROOM
        for name, buffer in sorted(buffers.items(), key=lambda entry: (entry[1].numel(), entry[0])):
            bytes_ = buffer.numel() * buffer.element_size()
            if bytes_ > room:
                break
            room -= bytes_
            self._buffers[name] = buffer

    @property
    def ids(self) -> set[int]:
        """Of the buffers that are in the capsule."""
        return {id(buffer) for buffer in self._buffers.values()}

    @property
    def empty(self) -> bool:
        """Nothing that forward changes is protected."""
        return not self._buffers

    def versions(self) -> dict[str, int]:
        """How often each buffer was changed in place (torch's own counter)."""
        return {name: buffer._version for name, buffer in self._buffers.items()}

    def release(self, names: Iterable[str]) -> None:
        """These are protected like parameters from here on: the same on all ranks, changed by the update."""
        for name in names:
            self._buffers.pop(name, None)

    def release_changed(self, before: dict[str, int]) -> None:
        """Releases what the update of a decided step changed; `before`: `versions()` at its start.

        The capsule that was saved before the vote stays as it is: a successor may need it, and `restore` takes nothing
        out of it that was released.
        """
        self.release([name for name, version in self.versions().items() if before.get(name) != version])

    def save(self, engine: Engine, version: int) -> None:
        """The buffers as they are now become those of `version`."""
        if not self._buffers:
            return
        layout = [
            [name, str(b.dtype), list(b.shape), b.numel() * b.element_size()] for name, b in self._buffers.items()
        ]
        header = json.dumps(layout).encode()
        parts = [struct.pack("<I", len(header)), header, *raw_bytes(list(self._buffers.values()))]
        engine.save_capsule(version, b"".join(parts))

    def restore(self, engine: Engine, version: int) -> bool:
        """Puts back the buffers of `version`; False if they are not (all) there."""
        if not self._buffers:
            return True
        data = engine.load_capsule(version)
        if data is None:
            return False
        (length,) = struct.unpack_from("<I", data)
        at = 4 + length
        missing = set(self._buffers)
        for name, dtype, shape, bytes_ in json.loads(data[4:at]):
            buffer = self._buffers.get(name)
            if buffer is not None and [str(buffer.dtype), list(buffer.shape)] == [dtype, shape]:
                target = torch.empty(buffer.shape, dtype=buffer.dtype)
                ctypes.memmove(target.data_ptr(), data[at : at + bytes_], bytes_)
                with torch.no_grad():
                    buffer.copy_(target)
                missing.discard(name)
            at += bytes_
        return not missing
