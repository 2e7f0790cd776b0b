"""Whether listed tensors and entries still hold what they held: a few calls that loop over lists in C.

Of each tensor, 64 bytes from its middle are read, and its version and its memory are compared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from keepstep import _engine
from keepstep.torch.state.registry import parameters_of, with_state
from keepstep.torch.tensors import dtensor

PIECE_BYTES = 64  # read of each tensor, from its middle
STATE_PARAMETERS = 16  # whose state is checked, of each optimizer

_version = attrgetter("_version")
_place = torch.Tensor.data_ptr
_state = attrgetter("state")


class Pieces:
    """A fixed list of tensors, of which 64 bytes each are read; keeps the tensors' memory alive."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []  # each one's memory when it was listed
        self._here: list[memoryview] = []
        self._moved: list[int] = []  # indices of those that had other memory when it was made
        self._elsewhere: dict[torch.device, list[torch.Tensor]] = {}
        self._number: dict[str, list[int]] = {"cpu": []}  # by device: the tensors that the parts belong to
        for name, tensor in named:
            if tensor.is_inference():
                continue
            held = dtensor.local(tensor).detach()
            if type(held) is not torch.Tensor or held.layout is not torch.strided or held.numel() == 0:
                continue
            self.names.append(name)
            self.tensors.append(tensor)
            self.memory.append(held)
            if (part := _middle(held)) is None:
                continue
            if held.device.type != "cpu":
                self._elsewhere.setdefault(held.device, []).append(part)
            self._number.setdefault(str(held.device), []).append(len(self.names) - 1)
        # A DTensor is only checked through its memory: FSDP2 moves what it holds.
        self._placed = [
            held if dtensor.is_dtensor(tensor) else tensor
            for tensor, held in zip(self.tensors, self.memory, strict=True)
        ]
        self._watch = _engine.TensorWatch(self.tensors, self._placed)
        self._taken_elsewhere: dict[torch.device, torch.Tensor] = {}
        self._find()

    def _find(self) -> None:
        """Their current addresses. Memory itself may move: ``share_memory()`` and ``resize_()`` move a storage."""
        now, own = map(_place, self._placed), map(_place, self.memory)
        self._moved = [number for number, (a, b) in enumerate(zip(now, own, strict=True)) if a != b]
        parts = [_part(self.memory[number]) for number in self._number["cpu"]]
        self._here = [memoryview((ctypes.c_ubyte * size).from_address(at) if size else b"") for at, size in parts]
        self._watch.settle(parts)

    def spread(self, most: int) -> Pieces:
        """At most `count` of them, spread over the list."""
        every = list(zip(self.names, self.tensors, strict=True))
        return Pieces(every[:: max(1, -(-len(every) // most))])

    def take(self) -> bool:
        """Records what they hold now. Returns whether all have the memory that they had when they were listed."""
        if self._moved or not self._watch.take():  # where memory was freed, only _find knows what may be read
            self._find()
            self._watch.take()
        self._taken_elsewhere = {device: torch.cat(parts) for device, parts in self._elsewhere.items()}
        return not self._moved

    def moved(self) -> list[int]:
        """Indices of those whose memory is not the one from when they were listed."""
        if not self._watch.in_place():
            self._find()
        return self._moved

    def _holds_same(self, number: int) -> bool:
        """Whether the new memory holds the same bytes: cuDNN moves the weights of an LSTM in each forward."""
        now, own = self.tensors[number].detach(), self.memory[number]
        if (now.shape, now.dtype, now.device) != (own.shape, own.dtype, own.device):
            return False
        return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (now, own)))

    def first_changed(self, quick: bool = False, written: bool = True) -> str | None:
        """The name of the first that changed since the last `take`. `quick`: never waits for a device. Without
        `written`, a tensor that was written to but has the same bytes does not count as changed."""
        found = [] if not self._moved and self._watch.same(written) else self._changed_here(written)
        if not quick:
            for device, parts in self._elsewhere.items():
                before, now = self._taken_elsewhere[device], torch.cat(parts)
                if not torch.equal(now, before):
                    found += self._different(str(device), parts, bytes(before.tolist()), bytes(now.tolist()))
        return self.names[min(found)] if found else None

    def _changed_here(self, written: bool) -> list[int]:
        self._find()
        same = {number for number in self._moved if self._holds_same(number)}
        versions = zip(self._watch.versions, map(_version, self.tensors), strict=True)
        touched = [number for number, (before, now) in enumerate(versions) if before != now] if written else []
        found = [number for number in self._moved + touched if number not in same]
        return found + self._different("cpu", self._here, self._watch.bytes, b"".join(self._here))

    def _different(self, device: str, parts: Sequence[Any], before: bytes, now: bytes) -> list[int]:
        if len(before) == len(now) and (int.from_bytes(before, "big") ^ int.from_bytes(now, "big")).bit_count() == 1:
            return []  # hardware, not code: digests find this rank, and it is replaced (docs/design/corruption.md)
        found, at = [], 0
        for number, part in zip(self._number[device], parts, strict=True):
            end = at + len(part)
            if before[at:end] != now[at:end]:
                found.append(number)
            at = end
        return found


class Slots:
    """A fixed list of dict entries: checks ``dict.get(key) is value`` for all in a few calls."""

    def __init__(self, found: Iterable[tuple[dict[Any, Any], Any, Any]] = ()) -> None:
        self._dicts: list[dict[Any, Any]] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        for holder, key, value in found:
            self._dicts.append(holder)
            self._keys.append(key)
            self._values.append(value)

    def others(self) -> list[int]:
        """Indices of those that hold something else now."""
        now = [*map(dict.get, self._dicts, self._keys)]
        if all(map(is_, now, self._values)):
            return []
        return [number for number, (a, b) in enumerate(zip(now, self._values, strict=True)) if a is not b]

    def put_back(self) -> None:
        for number in self.others():
            self._dicts[number][self._keys[number]] = self._values[number]


class Schedules:
    """The learning-rate schedules among `objects`, and how many steps each has made."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._named = {name: item for name, item in objects.items() if isinstance(item, LRScheduler)}
        self._steps = self._now()

    def _now(self) -> list[Any]:
        return [getattr(item, "last_epoch", None) for item in self._named.values()]

    def stepped(self) -> str | None:
        """The name of one that has made more steps since."""
        return next((n for n, was, now in zip(self._named, self._steps, self._now(), strict=True) if was != now), None)


class OptimizerStates:
    """Some tensors of each optimizer's state: walking all would take longer than the rest of a commit.

    `objects`: by name; only optimizers are used.
    """

    def __init__(self, objects: dict[str, Any]) -> None:
        self.named: list[tuple[str, torch.Tensor]] = []
        optimizers = {owner: item for owner, item in objects.items() if isinstance(item, Optimizer)}
        self._holders = [with_state(optimizer) for optimizer in optimizers.values()]  # those in partitioned ones
        self._states: list[Any] = [*map(_state, self._holders)]
        self._sized = [*self._states]  # these, and the dicts in them that are looked at
        self._owners = [*optimizers]
        self._names: list[str] = []  # of slots
        slots: list[tuple[dict[Any, Any], Any, Any]] = []
        for (owner, optimizer), states in zip(optimizers.items(), self._states, strict=True):
            parameters = list(enumerate(parameters_of(optimizer)))
            for index, parameter in parameters[:: max(1, -(-len(parameters) // STATE_PARAMETERS))]:
                state = states.get(parameter)
                if not isinstance(state, dict):
                    continue
                self._sized.append(state)
                name = f"{owner}/state/{index}"
                if isinstance(states, dict):
                    self._names.append(name)
                    slots.append((states, parameter, state))
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.named.append((f"{name}/{key}", value))
                        self._names.append(f"{name}/{key}")
                        slots.append((state, key, value))
        self._slots = Slots(slots)
        self._sizes = [*map(len, self._sized)]

    def others(self) -> bool:
        """Whether the tensors, or their number, have changed."""
        return [*map(len, self._sized)] != self._sizes or self.replaced() is not None

    def replaced(self) -> str | None:
        """The name of a state that was removed or replaced (``optimizer.state.clear()``)."""
        for owner, now, state in zip(self._owners, map(_state, self._holders), self._states, strict=True):
            if now is not state:
                return f"{owner}/state"
        others = self._slots.others()
        return self._names[others[0]] if others else None


def _middle(tensor: torch.Tensor) -> torch.Tensor | None:
    """Up to 64 bytes from the middle of a tensor's memory; None if they cannot be read this way."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(span, max(1, PIECE_BYTES // tensor.element_size()))
    try:
        return tensor.as_strided((count,), (1,), tensor.storage_offset() + (span - count) // 2).view(torch.uint8)
    except RuntimeError:
        return None  # a storage that is not there, or a dtype without bytes of its own


def _part(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of `_middle` in main memory; size 0 if its storage was freed."""
    part = _middle(tensor)
    return (0, 0) if part is None else (part.data_ptr(), part.numel())


def point_back(pieces: Pieces) -> None:
    """Gives tensors back their own memory, after ``parameter.data = ...``."""
    for number in pieces.moved():
        pieces.tensors[number].data = pieces.memory[number]
