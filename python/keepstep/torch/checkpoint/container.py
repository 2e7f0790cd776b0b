"""What torch.save puts around a tensor's elements: a zip archive, the same for each dtype and shape.

So a file of a checkpoint is a recipe: literal bytes, a tensor's memory, literal bytes (src/checkpoint/file_recipe.h).
The archive's CRC-32 leaves the elements out, as with ``torch.serialization.set_crc32_options(False)``: torch.load does
not check it, and the manifest has better checksums.
"""

from __future__ import annotations

import ctypes
import io
from dataclasses import dataclass
from typing import IO, Any, cast

import torch

from keepstep._errors import KeepstepError


@dataclass(frozen=True)
class Container:
    prefix: bytes
    suffix: bytes


class _Holes(io.RawIOBase):
    """A file that keeps what is written to it and not what is skipped: a tensor of any size costs nothing."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            offset += max((at + len(piece) for at, piece in self.pieces), default=0)
        self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self.pieces.append((self._at, piece))
        self._at += len(piece)
        return len(piece)


def _written(tensor: torch.Tensor) -> Container:
    """`tensor`: plain, contiguous, with a storage of its own size. Its elements are not looked at."""
    file = _Holes()
    with torch.serialization.skip_data():
        torch.save(tensor, cast(IO[bytes], file))
    file.pieces.sort(key=lambda piece: piece[0])
    prefix, suffix, end, hole = b"", b"", 0, 0
    for at, piece in file.pieces:
        if at < end:
            raise KeepstepError(f"torch {torch.__version__} writes the archive of a tensor in a way that is not known")
        if at > end:
            hole += at - end
            if suffix or hole != tensor.nbytes:
                raise KeepstepError(f"torch {torch.__version__} skips other bytes of a tensor than its elements")
        if hole or (not tensor.nbytes and suffix):
            suffix += piece
        else:
            prefix += piece
        end = at + len(piece)
    if tensor.nbytes and hole != tensor.nbytes:
        raise KeepstepError(f"torch {torch.__version__} skips other bytes of a tensor than its elements")
    return Container(prefix, suffix)


_MAX_KEPT = 4096
_kept: dict[tuple[torch.dtype, torch.Size], Container] = {}


def container_of(tensor: torch.Tensor) -> Container:
    """Of a plain contiguous tensor in the memory of the host. `prefix` + its elements + `suffix` is what torch.load
    reads."""
    key = (tensor.dtype, tensor.shape)
    found = _kept.get(key)
    if found is None:
        exact = tensor
        if tensor.untyped_storage().nbytes() != tensor.nbytes:  # a view: torch.save would write all that it views
            exact = torch.empty(0, dtype=tensor.dtype)
            if tensor.nbytes:
                memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
                exact = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
            exact = exact.view(tensor.shape)
        found = _written(exact)
        if len(_kept) >= _MAX_KEPT:  # shapes that change with every save: no cache helps
            _kept.clear()
        _kept[key] = found
    return found
