"""An optimizer that steps protected parameters has to be protected, too: otherwise a fault takes its state away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from keepstep.torch.state.registry import Registry, parameters_of, with_state


def unprotected(registry: Registry, optimizer: Optimizer) -> str | None:
    """The name of a protected tensor that `optimizer` steps, where nothing protected has its state."""
    objects = registry.objects
    if any(item is optimizer for item in objects.values()) or any(_has_state(i, optimizer) for i in objects.values()):
        return None
    stepped = {id(parameter) for parameter in parameters_of(optimizer)}
    for name, item in objects.items():
        if isinstance(item, torch.nn.Module):
            for path, parameter in item.named_parameters():
                if id(parameter) in stepped:
                    return f"{name}/{path}"
        elif id(item) in stepped:
            return name
    return None


def _has_state(item: Any, optimizer: Optimizer) -> bool:
    """Whether `optimizer` is in the protected `item`, or around it and without a state of its own."""
    if isinstance(item, Optimizer):
        around = any(part is item for part in _parts(optimizer)) and not getattr(optimizer, "state", None)
        return around or with_state(item) is optimizer or getattr(item, "state", None) is optimizer.state
    if isinstance(item, (torch.nn.Module, torch.Tensor, dict, LRScheduler)):
        return False
    return any(part is optimizer for part in _parts(item))


def _parts(item: Any) -> Iterator[Any]:
    for value in getattr(item, "__dict__", {}).values():
        yield value
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
