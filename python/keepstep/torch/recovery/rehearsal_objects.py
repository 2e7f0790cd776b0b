"""Object collectives of a process that rehearses.

torch first sends the sizes of pickles, into uninitialized memory. Nothing arrives, so a receiver would allocate a
random size and unpickle garbage. Here every list stays as this rank has it: as if all peers sent what it sends.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist


def _broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
    pass


def _recv_object_list(
    object_list: list[Any], src: int | None = None, *_: Any, group_src: int | None = None, **__: Any
) -> int:
    return next((rank for rank in (src, group_src) if rank is not None), 0)


def _scatter_object_list(
    scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, *_: Any, group: Any = None, **__: Any
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]


_STAND_INS: dict[str, Callable[..., Any]] = {
    "broadcast_object_list": _broadcast_object_list,
    "recv_object_list": _recv_object_list,
    "scatter_object_list": _scatter_object_list,
}


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Replaces torch's functions by the stand-ins, in every module that has them under any name."""
    stand_ins = {id(getattr(dist, name)): stand_in for name, stand_in in _STAND_INS.items() if hasattr(dist, name)}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            replaced += [(names, name, value) for name, value in list(names.items()) if id(value) in stand_ins]
    for names, name, value in replaced:
        names[name] = stand_ins[id(value)]
    try:
        yield
    finally:
        for names, name, value in replaced:
            names[name] = value
