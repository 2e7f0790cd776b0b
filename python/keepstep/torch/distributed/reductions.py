"""torch's dtypes and reduce operations as the engine numbers them (src/comm/communicator.h)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
_OPS = {
    dist.ReduceOp.SUM: 0,
    dist.ReduceOp.AVG: 1,
    dist.ReduceOp.PRODUCT: 2,
    dist.ReduceOp.MIN: 3,
    dist.ReduceOp.MAX: 4,
    dist.ReduceOp.BAND: 5,
    dist.ReduceOp.BOR: 6,
    dist.ReduceOp.BXOR: 7,
}


def dtype_number(dtype: torch.dtype, what: str) -> int:
    """The engine's number for `dtype`; TypeError for one it does not reduce."""
    number = _DTYPES.get(dtype)
    if number is None:
        raise TypeError(f'{what}: backend "keepstep" does not reduce {dtype}')
    return number


def op_number(options: Any, what: str) -> int:
    """The engine's number for `options.reduceOp`. PREMUL_SUM is a sum: see `premultiplier`."""
    op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
    for known, number in _OPS.items():
        if op == known:
            return number
    if op == dist.ReduceOp.PREMUL_SUM:
        return _OPS[dist.ReduceOp.SUM]
    name = str(op).rsplit(".", 1)[-1].rstrip(">").split(":")[0]
    raise TypeError(f'{what}: backend "keepstep" has no reduction {name}')


def premultiplier(options: Any) -> Any:
    """The factor of a PREMUL_SUM, a number or a tensor of one element; None for every other reduction."""
    op = getattr(options, "reduceOp", None)
    if op is None or not op == dist.ReduceOp.PREMUL_SUM:
        return None
    return op.__getstate__()[1]
