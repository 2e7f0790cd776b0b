"""Writes one file of a checkpoint from a rank's recipe and shared memory."""

from __future__ import annotations

import ctypes
import mmap

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import packets
from keepstep.checkpoint.background.recipe import Piece, pieces_of


def write(store: _checkpoint.Store, key: str, expected: int, recipe: bytes, memory: int) -> _checkpoint.FileSums:
    """The file is durable when this returns. `expected`: its size according to the rank. `memory`: a descriptor.

    KeepstepError, `_checkpoint.Error`, OSError: the file does not exist, and nothing is left of it.
    """
    size = packets.size_of(memory)
    pieces = list(pieces_of(recipe, size))
    total = sum(each[1] if isinstance(each, tuple) else len(each) for each in pieces)
    if total != expected:
        raise KeepstepError(f"the recipe of '{key}' produces {total} bytes, but {expected} were announced")
    if not size:
        return _written(store, key, expected, pieces, 0)
    held = mmap.mmap(memory, size)  # writable, as Python gives the address only of such memory; it is only read
    first = ctypes.c_char.from_buffer(held)
    try:
        return _written(store, key, expected, pieces, ctypes.addressof(first))
    finally:
        del first
        held.close()


def _written(
    store: _checkpoint.Store, key: str, expected: int, pieces: list[Piece], address: int
) -> _checkpoint.FileSums:
    writer = _checkpoint.FileWriter(store, key, expected)
    for each in pieces:
        if isinstance(each, tuple):
            writer.append_memory(address + each[0], each[1])
        else:
            writer.append(each)
    return writer.commit()
