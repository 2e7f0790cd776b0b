"""The norm of gradients, with bits that depend on the gradients alone: not on ranks, buckets, threads or registers.

Squares are added in float64 in the fixed order of src/comm/numbers/sum_of_squares.h, then over the parameters in their
order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from keepstep import _engine
from keepstep.torch.distributed.reductions import dtype_number
from keepstep.torch.reduction.reduce import SUMMABLE
from keepstep.torch.tensors.memory import dense, piece


def grad_norm(parameters: torch.Tensor | Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """The norm of all gradients taken together: a scalar of float64. `norm_type`: 2, or inf for the largest."""
    if norm_type not in (2.0, math.inf):
        raise ValueError(f"grad_norm: norm_type {norm_type} has no fixed order; 2 and inf do")
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    total = 0.0
    largest = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        if tensor.grad is None:
            continue
        gradient = tensor.grad.detach()
        if type(gradient) is not torch.Tensor or gradient.layout != torch.strided or gradient.dtype not in SUMMABLE:
            raise TypeError(
                f"grad_norm: a gradient is a {type(gradient).__qualname__} of {gradient.dtype} ({gradient.layout}); "
                "whole, dense ones of floating point are meant"
            )
        if norm_type == math.inf:
            if gradient.numel():
                largest = torch.maximum(largest, gradient.abs().max().double().cpu())
            continue
        values = dense(gradient.cpu())
        total += _engine.sum_of_squares(piece(values)[0], values.numel(), dtype_number(values.dtype, "grad_norm"))
    return largest if norm_type == math.inf else torch.tensor(math.sqrt(total), dtype=torch.float64)


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales gradients in place so that their norm is at most `max_norm`; returns the norm before that.

    Like ``torch.nn.utils.clip_grad_norm_``, with `grad_norm`'s bits.
    """
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    norm = grad_norm(tensors, norm_type)
    if error_if_nonfinite and not bool(torch.isfinite(norm)):
        raise RuntimeError(
            f"clip_grad_norm_: the norm of the gradients is {norm.item()}, so they cannot be clipped. To scale them "
            "anyway, set error_if_nonfinite=False"
        )
    scale = min(1.0, max_norm / (norm.item() + 1e-6)) if not math.isnan(norm.item()) else math.nan
    if scale != 1.0:
        with torch.no_grad():
            for tensor in tensors:
                if tensor.grad is not None:
                    tensor.grad.mul_(scale)
    return norm
