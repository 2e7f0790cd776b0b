"""The safetensors format (https://github.com/huggingface/safetensors): how its header is written, and read safely."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keepstep._errors import KeepstepError

# The format's names, and bytes per element, by torch's names.
DTYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2), "int64": ("I64", 8),
    "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1), "bool": ("BOOL", 1),
    "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8), "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1), "float8_e8m0fnu": ("F8_E8M0", 1), "complex64": ("C64", 8),
}  # fmt: skip
_NAMES = {name: (dtype, width) for dtype, (name, width) in DTYPES.items()}
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 64
_ALIGNMENT = 64


class Tensor(NamedTuple):
    """Where a tensor lies in the file: `begin` is counted from the file's first byte."""

    dtype: str  # torch's name
    shape: tuple[int, ...]
    begin: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


class Layout(NamedTuple):
    """A file: its first bytes, its size, and its tensors in the order of their bytes."""

    header: bytes
    bytes: int
    tensors: dict[str, Tensor]


def lay_out(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]) -> Layout:
    """`tensors`: dtype (torch's name, one of DTYPES) and shape, by name. All of them are aligned."""
    # The widest elements first, so no tensor needs padding, which the format forbids.
    order = sorted(tensors, key=lambda name: -DTYPES[tensors[name][0]][1])
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    begins = {}
    at = 0
    for name in order:
        dtype, shape = tensors[name]
        begins[name] = at
        end = at + math.prod(shape) * DTYPES[dtype][1]
        entries[name] = {"dtype": DTYPES[dtype][0], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    found = {name: Tensor(tensors[name][0], tuple(tensors[name][1]), len(header) + begins[name]) for name in order}
    return Layout(header, len(header) + at, found)


def read_layout(file: memoryview, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file in memory. KeepstepError: `what` is no valid file."""
    try:
        size = int.from_bytes(file[:8], "little")
        if not 2 <= size <= min(MAX_HEADER_BYTES, len(file) - 8):
            raise ValueError(f"a header of {size} bytes in {len(file)}")
        said = json.loads(bytes(file[8 : 8 + size]))
        metadata = said.pop("__metadata__", {})
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise ValueError("metadata that is no text")
        return {name: _tensor(name, entry, 8 + size, len(file)) for name, entry in said.items()}, metadata
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeepstepError(f"{what} is no valid safetensors file: {error}") from None


def _tensor(name: str, entry: object, data_at: int, end: int) -> Tensor:
    if not isinstance(entry, dict):
        raise ValueError(f"'{name}' is no object")
    shape, (begins, ends) = entry["shape"], entry["data_offsets"]
    numbers = [*shape, begins, ends]
    if len(shape) > _MAX_DIMENSIONS or any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise ValueError(f"'{name}' has a strange shape or place")
    dtype, width = _NAMES[entry["dtype"]]
    if begins + math.prod(shape) * width != ends or data_at + ends > end:
        raise ValueError(f"'{name}' does not fit its place")
    return Tensor(dtype, tuple(shape), data_at + begins)
