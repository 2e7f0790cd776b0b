"""A file's sums as sent between nodes: JSON, checked on arrival."""

from __future__ import annotations

from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError


def as_json(sums: _checkpoint.FileSums) -> list[Any]:
    return list(sums.__getstate__())


def from_json(value: Any) -> _checkpoint.FileSums:
    try:
        size, high, low, chunks = value
        numbers = [size, high, low, *(half for chunk in chunks for half in chunk)]
        if any(type(each) is not int or not 0 <= each < 1 << 64 for each in numbers):
            raise ValueError("a number that is none")
        if len(chunks) != -(-size // _checkpoint.CHUNK_BYTES) or any(len(chunk) != 2 for chunk in chunks):
            raise ValueError(f"{len(chunks)} chunks of a file of {size} bytes")
    except (TypeError, ValueError) as error:
        raise KeepstepError(f"sums of a file that cannot be read: {error}") from None
    found = _checkpoint.FileSums.__new__(_checkpoint.FileSums)
    found.__setstate__((size, high, low, [(first, second) for first, second in chunks]))
    return found
