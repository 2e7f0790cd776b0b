"""A state's values as exact JSON, and the tensors inside lists, tuples and dicts, each under its path.

A list ``Q`` of two tensors becomes the tensors ``Q.0`` and ``Q.1``, and in the JSON a list of two marks. A mark says
which kind of device its tensor is on, and its memory order; the path follows from the mark's place in the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.tensors import dtensor

_MARK = "__tensor__"
_STRIDES = "strides"


class TensorMark(NamedTuple):
    """Describes a tensor: the type of its device, and its strides if it is dense in an unusual order.

    Kernels may give different bits for a different order, and solvers often return such tensors.
    """

    device: str
    strides: list[int] | None

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` has that order."""
        return tensor.is_contiguous() if self.strides is None else list(tensor.stride()) == self.strides

    def make(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor to be filled."""
        if self.strides is None:
            return torch.empty(list(shape), dtype=dtype, device=device)
        return torch.empty_strided(shape, self.strides, dtype=dtype, device=device)


def _strides(tensor: torch.Tensor) -> list[int] | None:
    if tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() != tensor.stride():
        return None  # the usual order, or not dense
    return list(tensor.stride())


def split(path: str, value: Any, put: Callable[[str, torch.Tensor], None]) -> Any:
    """`value` as JSON; passes each tensor in it to `put` with its path. Tuples and dicts are marked.

    Raises:
        KeepstepError: something in it cannot be sent; the error names its path.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, torch.Tensor):
        put(path, value.detach())
        strides = _strides(value)
        return {_MARK: value.device.type} if strides is None else {_MARK: value.device.type, _STRIDES: strides}
    if isinstance(value, (list, tuple)):
        items = [_inside(f"{path}.{i}", item, put) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        return {
            "__dict__": [
                [without_tensors(path, key), _inside(f"{path}.{key}", item, put)] for key, item in value.items()
            ]
        }
    raise KeepstepError(
        f"state: '{path}' is a {type(value).__module__}.{type(value).__qualname__}, which keepstep cannot carry to "
        "another process: tensors, numbers, strings, None, lists, tuples and dicts of them can. Keep it out of the "
        f"protected object's state_dict, or {_instead(value)}."
    )


def _inside(path: str, value: Any, put: Callable[[str, torch.Tensor], None]) -> Any:
    if isinstance(value, torch.Tensor) and dtensor.is_dtensor(value):
        raise KeepstepError(
            f"state: '{path}' is a DTensor inside a list or dict, which a replacement could not make: keep it as an "
            "entry of its own, or write value.full_tensor() where all ranks hold the same"
        )
    return split(path, value, put)


def without_tensors(path: str, value: Any) -> Any:
    """Like `split`, for a value without tensors."""

    def refuse(at: str, _tensor: torch.Tensor) -> None:
        raise KeepstepError(f"state: '{at}' is a tensor where keepstep cannot carry one to another process")

    return split(path, value, refuse)


def _instead(value: Any) -> str:
    """What to write in its place."""
    if type(value).__module__.partition(".")[0] == "numpy":
        return (
            "write torch.from_numpy(value)"
            if hasattr(value, "__array_interface__") and value.shape
            else ("write value.item()")
        )
    if isinstance(value, (set, frozenset)):
        return "write sorted(value)"
    return "turn it into one of these"


def joined(path: str, written: Any, tensors: Mapping[str, torch.Tensor], now: Any = None) -> Any:
    """The value that `split` wrote. `now`: the current value; a tensor in it with the same memory is kept."""
    if isinstance(written, list):
        items = now if isinstance(now, (list, tuple)) else []
        return [
            joined(f"{path}.{i}", item, tensors, items[i] if i < len(items) else None) for i, item in enumerate(written)
        ]
    if not isinstance(written, dict):
        return written
    if "__float__" in written:
        return float(written["__float__"])
    if "__tuple__" in written:
        return tuple(joined(path, written["__tuple__"], tensors, now))
    if _MARK in written:
        return _same_or(tensors[path], now)
    known = now if isinstance(now, dict) else {}
    pairs = [(joined(path, key, {}), item) for key, item in written["__dict__"]]
    return {key: joined(f"{path}.{key}", item, tensors, known.get(key)) for key, item in pairs}


def _same_or(tensor: torch.Tensor, now: Any) -> torch.Tensor:
    if isinstance(now, torch.Tensor):
        here = dtensor.local(now)
        if here.data_ptr() == tensor.data_ptr() and here.shape == tensor.shape and here.dtype == tensor.dtype:
            return now
    return tensor


def marks(path: str, written: Any) -> Iterator[tuple[str, TensorMark]]:
    """The path and mark of each tensor in what `split` wrote."""
    if isinstance(written, list):
        for i, item in enumerate(written):
            yield from marks(f"{path}.{i}", item)
    elif isinstance(written, dict):
        if _MARK in written:
            yield path, TensorMark(written[_MARK], written.get(_STRIDES))
        elif "__tuple__" in written:
            yield from marks(path, written["__tuple__"])
        else:
            for key, item in written.get("__dict__", []):
                yield from marks(f"{path}.{joined(path, key, {})}", item)
