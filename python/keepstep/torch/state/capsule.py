"""The capsule: what forward changes independently on each rank (BatchNorm's statistics), at most 1 MiB.

It is captured before the vote on a step, and the agent stores it for two versions; a redo and a newcomer start from
it. Its bytes are a JSON header (names, dtypes, shapes, and what get_extra_state returned), then the tensors; nothing is
pickled.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch

from keepstep._engine import Engine
from keepstep._errors import KeepstepError
from keepstep.torch.state import extra_state
from keepstep.torch.state.registry import Registry, Slot, buffer_in, buffer_slots
from keepstep.torch.tensors.memory import raw_bytes

CAPSULE_BYTES = 1 << 20
_HEADER_ROOM = 64 * 1024
_version = attrgetter("_version")
MAX_EXTRA_BYTES = CAPSULE_BYTES // 4  # of get_extra_state, as JSON


class Capsule:
    """The per-rank buffers of the protected modules, and their extra state.

    Buffers are added smallest first, as long as they fit. The rest is protected like parameters (large buffers are
    tables and masks, which forward does not change; the checking mode names those that it does change). A buffer is
    identified by its path, so one that forward replaces, or makes in place of None, belongs to the capsule too.
    """

    def __init__(self, registry: Registry) -> None:
        found: dict[str, Slot] = {}
        self._extra = extra_state.named(registry.objects)
        self._saved_extra: dict[str, Any] = {}
        for owner, item in registry.objects.items():
            if isinstance(item, torch.nn.Module):
                seen: set[int] = set()
                for path, slot in buffer_slots(item):
                    buffer = buffer_in(slot)
                    if buffer is None or id(buffer) not in seen:
                        seen.add(id(buffer))
                        found[f"{owner}/{path}"] = slot
        self._slots: dict[str, Slot] = {}
        self._compared: list[torch.Tensor] = []
        extra = len(json.dumps(extra_state.take(self._extra)))
        if extra > MAX_EXTRA_BYTES:
            raise KeepstepError(
                f"state: what get_extra_state returns ({', '.join(name for name, _ in self._extra[:4])}) takes "
                f"{extra} bytes as JSON, {MAX_EXTRA_BYTES} is the most; keep large tensors in buffers instead"
            )
        room = CAPSULE_BYTES - _HEADER_ROOM - 2 * extra  # it may grow
        for name, slot in sorted(found.items(), key=lambda entry: (_elements(entry[1]), entry[0])):
            buffer = buffer_in(slot)
            bytes_ = 0 if buffer is None else buffer.numel() * buffer.element_size()
            if bytes_ > room:
                break
            room -= bytes_
            self._slots[name] = slot
        self._made = {name for name, slot in self._slots.items() if buffer_in(slot) is None}  # by forward, later

    @property
    def _buffers(self) -> dict[str, torch.Tensor]:
        """The current buffers."""
        now = zip(self._slots, itertools.starmap(dict.get, self._slots.values()), strict=True)
        return {name: buffer for name, buffer in now if buffer is not None}

    @property
    def ids(self) -> set[int]:
        """The ids of the buffers in the capsule."""
        return {id(buffer) for buffer in self._buffers.values()}

    @property
    def empty(self) -> bool:
        """Whether nothing that forward changes is protected."""
        return not self._slots and not self._extra

    def versions(self) -> dict[str, tuple[int, int]]:
        """Each buffer's tensor, and how often it was changed in place (torch's own counter)."""
        if not self._slots:
            return {}
        buffers = self._buffers
        now = [*buffers.values()]
        self._compared = [*self._compared[-len(self._slots) :], *now]  # held, or else its id may be reused
        return dict(zip(buffers, zip(map(id, now), map(_version, now), strict=True), strict=True))

    def changed_extra(self) -> str | None:
        """Names of extra state (`get_extra_state`) that a forward has changed since it was saved."""
        now = extra_state.take(self._extra)
        return next((name for name in now if now[name] != self._saved_extra.get(name, now[name])), None)

    def release(self, names: Iterable[str]) -> None:
        """From now on these are protected like parameters: the same on all ranks, changed by the update."""
        for name in names:
            self._slots.pop(name, None)

    def release_changed(self, before: dict[str, tuple[int, int]]) -> dict[str, Slot]:
        """Releases what a decided step's update changed, and returns its names; `before`: `versions()` at its start.

        The capsule saved before the vote stays as it is: a successor may need it, and `restore` ignores what was
        released.
        """
        moved = {name: self._slots[name] for name, each in self.versions().items() if before.get(name) != each}
        self.release(moved)
        if name := self.changed_extra():
            raise KeepstepError(
                f"step.commit: the update changed what get_extra_state of '{name}' returns, which is carried as "
                "forward left it before the vote; an update may change tensors only (does it run a forward of this "
                "module? then keep its counters in buffers)"
            )
        return moved

    def twin(self, name: str) -> torch.Tensor | None:
        """This rank's own buffer of the same path, in another protected module."""
        path = _path(name)
        return next((buffer for other, buffer in self._buffers.items() if _path(other) == path), None)

    def save(self, engine: Engine, version: int) -> None:
        """Saves the current buffers as those of `version`."""
        if not self.empty:
            engine.save_capsule(version, self.take())

    def take(self) -> bytes:
        """The current buffers and extra state, for `put_back`."""
        buffers = self._buffers
        layout = [
            [name, str(b.dtype), list(b.shape), b.numel() * b.element_size(), b.device.type]
            for name, b in buffers.items()
        ]
        self._saved_extra = extra_state.take(self._extra)
        header = json.dumps({"buffers": layout, "extra": self._saved_extra}).encode()
        parts = [struct.pack("<I", len(header)), header, *raw_bytes(list(buffers.values()))]
        return b"".join(parts)

    def restore(self, engine: Engine, version: int) -> bool:
        """Restores the buffers of `version`; False if some of them are missing."""
        if self.empty:
            return True
        data = engine.load_capsule(version)
        return data is not None and self.put_back(data)

    def put_back(self, data: bytes) -> bool:
        """What `take` returned, here or on another rank; False if something is missing."""
        (length,) = struct.unpack_from("<I", data)
        at = 4 + length
        header = json.loads(data[4:at])
        missing = set(self._slots)
        for name, module in self._extra:
            if name not in header["extra"]:
                return False
            module.set_extra_state(extra_state.decoded(header["extra"][name]))
        self._saved_extra = extra_state.take(self._extra)
        for name, dtype, shape, bytes_, device in header["buffers"]:
            buffer = self._room(name, dtype, shape, device)
            if buffer is not None:
                target = torch.empty(buffer.shape, dtype=buffer.dtype)
                ctypes.memmove(target.data_ptr(), data[at : at + bytes_], bytes_)
                with torch.no_grad():
                    buffer.copy_(target)
                missing.discard(name)
            at += bytes_
        for name in missing & self._made:
            buffers, key = self._slots[name]
            buffers[key] = None  # forward had not made it yet
        return missing <= self._made

    def _room(self, name: str, dtype: str, shape: list[int], device: str) -> torch.Tensor | None:
        """The buffer of that name, created if missing or empty. None if its shape or dtype differs here."""
        if name not in self._slots:
            return None
        buffers, key = self._slots[name]
        buffer = buffers.get(key)
        if buffer is not None and [str(buffer.dtype), list(buffer.shape)] == [dtype, shape]:
            return buffer
        if buffer is None or buffer.numel() == 0 or name in self._made:
            kind = getattr(torch, dtype.removeprefix("torch."))
            buffers[key] = torch.empty(shape, dtype=kind, device=device if buffer is None else buffer.device)
            return buffers[key]
        return None


def _path(name: str) -> str:
    """In a module, or in what wraps it for averaging."""
    return name.partition("/")[2].removeprefix("module.")


def _elements(slot: Slot) -> int:
    buffer = buffer_in(slot)
    return 0 if buffer is None else buffer.numel()
