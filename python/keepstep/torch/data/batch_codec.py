"""Batches and loader states as bytes: a bounded binary form, nothing is pickled (docs/formats/data_ring.md).

Tensors and arrays are written as they are in memory and read as views of the bytes, without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch

from keepstep._errors import KeepstepError

ALIGNMENT = 64  # of values, and of a state after its batch
_MAGIC = b"KSB1"
_HEADER = struct.Struct("<4sIQQ")  # magic, 0, bytes of the tree, bytes of all
_MAX_DEPTH = 64
_MAX_DIGITS = 4096
_MAX_DIMENSIONS = 64

# A type's code is its index: only add at the end.
_DTYPES: tuple[torch.dtype, ...] = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
# As NumPy spells them.
_ARRAYS = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "<u2", "<u4", "<u8")

Piece = tuple[int, int, int]  # offset, address, bytes


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Encoded:
    """A value as bytes: `pieces` are the memory ranges of its parts, `keep` keeps them alive.

    Attributes:
        bytes: in all; bytes between the pieces have no meaning.
    """

    def __init__(self, value: Any, what: str = "batch") -> None:
        """Raises KeepstepError, which names the place in `value`, for what cannot be sent."""
        self._tree = bytearray()
        self._values: list[tuple[int, int, Any]] = []  # position of the offset in the tree, bytes, their owner
        self._node(value, what, 0)
        offset = aligned(_HEADER.size + len(self._tree))
        self.pieces: list[Piece] = []
        self.keep: list[Any] = []
        self.bytes = _HEADER.size + len(self._tree)
        for place, size, holder in self._values:
            struct.pack_into("<Q", self._tree, place, offset)
            address = holder.data_ptr() if isinstance(holder, torch.Tensor) else holder.ctypes.data
            if size:
                self.pieces.append((offset, address, size))
            self.keep.append(holder)
            self.bytes = offset + size
            offset = aligned(offset + size)
        head = _HEADER.pack(_MAGIC, 0, len(self._tree), self.bytes) + bytes(self._tree)
        kept = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self.keep.append(kept)
        self.pieces.append((0, kept.data_ptr(), len(head)))

    def moved(self, offset: int) -> list[Piece]:
        """The pieces, `offset` bytes further on."""
        return [(at + offset, address, size) for at, address, size in self.pieces]

    def _node(self, value: Any, where: str, depth: int) -> None:
        tree = self._tree
        if depth > _MAX_DEPTH:
            raise KeepstepError(f"cached: {where} is nested more than {_MAX_DEPTH} deep")
        if value is None:
            tree += b"N"
        elif value is True:
            tree += b"T"
        elif value is False:
            tree += b"F"
        elif type(value) is int:
            if -(1 << 63) <= value < 1 << 63:
                tree += b"i" + struct.pack("<q", value)
            else:
                if value.bit_length() > 3 * _MAX_DIGITS:
                    raise KeepstepError(f"cached: {where} is a number of {value.bit_length()} bits")
                digits = str(value).encode()
                tree += b"I" + struct.pack("<I", len(digits)) + digits
        elif type(value) is float:
            tree += b"f" + struct.pack("<d", value)
        elif type(value) is str:
            text = value.encode("utf-8", "surrogatepass")
            tree += b"s" + struct.pack("<Q", len(text)) + text
        elif type(value) is bytes:
            tree += b"b" + struct.pack("<Q", len(value)) + value
        elif isinstance(value, torch.Tensor):
            self._tensor(value, where)
        elif isinstance(value, Mapping):
            tree += b"d" + struct.pack("<I", len(value))
            for key, item in value.items():
                if key is not None and type(key) not in (str, int, bool, float):
                    raise KeepstepError(f"cached: {where} has a key of type {type(key).__qualname__}, {key!r:.100}")
                self._node(key, where, depth + 1)
                self._node(item, f"{where}[{key!r:.100}]", depth + 1)
        elif type(value) in (list, tuple):
            tree += (b"l" if type(value) is list else b"t") + struct.pack("<I", len(value))
            for number, item in enumerate(value):
                self._node(item, f"{where}[{number}]", depth + 1)
        elif type(value).__module__ == "numpy":
            self._array(value, where)
        else:
            raise _unknown(value, where)

    def _tensor(self, value: torch.Tensor, where: str) -> None:
        if value.layout != torch.strided or value.is_quantized or value.dtype not in _CODES:
            raise KeepstepError(f"cached: {where} is a {value.layout} tensor of {value.dtype}; make it a dense one")
        if value.device.type != "cpu":
            raise KeepstepError(f"cached: {where} lies on {value.device}; the ranks move batches, not the loader")
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        self._numbers(b"x", _CODES[value.dtype], tuple(value.shape), value.numel() * value.element_size(), value)

    def _array(self, value: Any, where: str) -> None:
        import numpy

        if isinstance(value, numpy.generic) and not isinstance(value, (numpy.str_, numpy.bytes_)):
            self._array(numpy.asarray(value), where)
            return
        if type(value) is not numpy.ndarray or value.dtype.str not in _ARRAYS:
            raise _unknown(value, where)
        shape = value.shape  # ascontiguousarray gives a scalar a dimension
        value = numpy.ascontiguousarray(value)
        self._numbers(b"a", _ARRAYS.index(value.dtype.str), shape, value.nbytes, value)

    def _numbers(self, tag: bytes, code: int, shape: tuple[int, ...], size: int, holder: Any) -> None:
        self._tree += tag + struct.pack(f"<BB{len(shape)}Q", code, len(shape), *shape)
        self._values.append((len(self._tree), size, holder))
        self._tree += bytes(8)


def _unknown(value: Any, where: str) -> KeepstepError:
    kind = type(value)
    return KeepstepError(
        f"cached: {where} is a {kind.__module__}.{kind.__qualname__}, which cannot be carried between processes "
        "without pickle. Tensors, NumPy arrays, numbers, strings, bytes, None, dicts, lists and tuples can; make the "
        "others of them in collate_fn"
    )


def decode(buffer: Any) -> Any:
    """Decodes what `Encoded` made. `buffer`: has the buffer protocol; tensors and arrays view it and keep it alive.

    Raises KeepstepError if `Encoded` cannot have written the bytes; never reads outside them.
    """
    data = memoryview(buffer).cast("B")
    if len(data) < _HEADER.size:
        raise _Bad("it is shorter than its header")
    magic, zero, tree_bytes, total = _HEADER.unpack_from(data)
    if magic != _MAGIC or zero != 0 or total != len(data) or tree_bytes > total - _HEADER.size:
        raise _Bad("its header is wrong")
    reader = _Reader(buffer, data, _HEADER.size + tree_bytes)
    value = reader.node(0)
    if reader.at != reader.end:
        raise _Bad("there is more than one value in it")
    return value


class _Bad(KeepstepError):
    def __init__(self, why: str) -> None:
        super().__init__(f"cached: a batch in shared memory is damaged: {why}")


class _Reader:
    def __init__(self, buffer: Any, data: memoryview, end: int) -> None:
        self._buffer = buffer
        self._data = data
        self.at = _HEADER.size
        self.end = end

    def _take(self, size: int) -> memoryview:
        if size > self.end - self.at:
            raise _Bad(f"{size} bytes at {self.at} lie past its end")
        self.at += size
        return self._data[self.at - size : self.at]

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self._take(struct.calcsize("<" + form)))

    def _count(self) -> int:
        count: int = self._unpack("I")[0]
        if count > self.end - self.at:  # each element has a byte at least
            raise _Bad(f"{count} elements where {self.end - self.at} bytes are left")
        return count

    def node(self, depth: int) -> Any:
        if depth > _MAX_DEPTH + 1:
            raise _Bad("it is nested too deep")
        tag = bytes(self._take(1))
        if tag == b"N":
            return None
        if tag in (b"T", b"F"):
            return tag == b"T"
        if tag in (b"i", b"f"):
            return self._unpack("q" if tag == b"i" else "d")[0]
        if tag == b"I":
            digits = self._unpack("I")[0]
            if digits > _MAX_DIGITS:
                raise _Bad(f"a number of {digits} digits")
            return self._whole_number(bytes(self._take(digits)))
        if tag in (b"s", b"b"):
            text = bytes(self._take(self._unpack("Q")[0]))
            return text if tag == b"b" else _text(text)
        if tag in (b"l", b"t"):
            items = [self.node(depth + 1) for _ in range(self._count())]
            return items if tag == b"l" else tuple(items)
        if tag == b"d":
            return dict(self._pair(depth) for _ in range(self._count()))
        if tag in (b"x", b"a"):
            return self._numbers(tag == b"x")
        raise _Bad(f"{tag!r} at {self.at - 1} says nothing")

    def _pair(self, depth: int) -> tuple[Any, Any]:
        key = self.node(depth + 1)
        if key is not None and type(key) not in (str, int, bool, float):
            raise _Bad(f"a key of type {type(key).__qualname__}")
        return key, self.node(depth + 1)

    @staticmethod
    def _whole_number(digits: bytes) -> int:
        try:
            return int(digits)
        except ValueError:
            raise _Bad("a number that is none") from None

    def _numbers(self, is_tensor: bool) -> Any:
        code, dimensions = self._unpack("BB")
        if dimensions > _MAX_DIMENSIONS or code >= len(_DTYPES if is_tensor else _ARRAYS):
            raise _Bad(f"a tensor of type {code} with {dimensions} dimensions")
        shape = self._unpack(f"{dimensions}Q")
        offset = self._unpack("Q")[0]
        size = _DTYPES[code].itemsize if is_tensor else int(_ARRAYS[code][2:])
        count = 1
        for extent in shape:
            count *= extent
        if offset % ALIGNMENT or offset < self.end or count * size > max(0, len(self._data) - offset):
            raise _Bad(f"a tensor of {shape} at {offset} does not lie in its {len(self._data)} bytes")
        if is_tensor:
            if count == 0:
                return torch.empty(shape, dtype=_DTYPES[code])
            flat = torch.frombuffer(self._buffer, dtype=_DTYPES[code], count=count, offset=offset)
            return flat.view(shape)
        import numpy

        if count == 0:
            return numpy.empty(shape, dtype=_ARRAYS[code])
        return numpy.frombuffer(self._buffer, dtype=_ARRAYS[code], count=count, offset=offset).reshape(shape)


def _text(text: bytes) -> str:
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise _Bad("a text that is not UTF-8") from None
