"""The recipe of a checkpoint file: literal bytes and ranges of shared memory (src/checkpoint/file_recipe.h).

Packed as a sequence of pieces, each with its kind (1 byte) and two numbers (8 bytes each, little endian). Kind 0: the
number of bytes, 0, then the bytes. Kind 1: the offset in the memory, and the number of bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import TypeAlias

from keepstep import _checkpoint
from keepstep._errors import KeepstepError

_HEAD = struct.Struct("<BQQ")
_LITERAL, _RANGE = 0, 1

Piece: TypeAlias = bytes | tuple[int, int]


class Recipe:
    """Accepts what `_checkpoint.FileWriter` accepts and records it. `address`, `length`: the shared memory."""

    def __init__(self, address: int, length: int) -> None:
        self.size = 0
        self._address = address
        self._length = length
        self._pieces = bytearray()

    def append(self, literal: bytes) -> None:
        self._pieces += _HEAD.pack(_LITERAL, len(literal), 0) + literal
        self.size += len(literal)

    def append_memory(self, address: int, bytes: int) -> None:
        """Bytes outside the shared memory become literal."""
        at = address - self._address
        if not bytes:
            return
        if 0 <= at <= self._length - bytes:
            self._pieces += _HEAD.pack(_RANGE, at, bytes)
            self.size += bytes
        else:
            self.append(ctypes.string_at(address, bytes))

    def commit(self) -> _checkpoint.FileSums:
        return _checkpoint.sums_to_come(self.size)

    def packed(self) -> bytes:
        return bytes(self._pieces)


def pieces_of(packed: bytes, memory_bytes: int) -> Iterator[Piece]:
    """The pieces in order; a range as (offset, bytes). KeepstepError: not a recipe, or a range outside the memory."""
    at = 0
    while at < len(packed):
        if at + _HEAD.size > len(packed):
            raise KeepstepError("the recipe of a file ends within a piece")
        kind, first, second = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        if kind == _LITERAL and second == 0 and first <= len(packed) - at:
            yield packed[at : at + first]
            at += first
        elif kind == _RANGE and 0 < second <= memory_bytes and first <= memory_bytes - second:
            yield first, second
        else:
            raise KeepstepError(f"the recipe of a file has a piece that cannot be (kind {kind}, {first}, {second})")
