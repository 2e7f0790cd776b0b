"""What a spare does before it parks, so that a recovery need not wait for it.

It allocates the optimizer's state, with real pages, and uses the kernels and the autograd engine once. Afterwards the
result of `build` is exactly as it was. (The rehearsal, a throwaway step of the user's own model, comes later.)
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from keepstep.torch.state.registry import Registry, parameters_of


def get_ready_quietly(registry: Registry) -> None:
    """`get_ready`, which only saves time: no error in it may cost the job a spare."""
    try:
        get_ready(registry)
    except Exception:
        registry.reserved.clear()
        registry.drop_gradients()


def get_ready(registry: Registry) -> None:
    """Called in a spare, once its objects are protected."""
    _use_kernels()
    for name, item in registry.objects.items():
        if isinstance(item, Optimizer) and type(item).__module__.startswith("torch.optim."):
            # Others may communicate in their step, and a process without a rank cannot.
            _reserve(registry, name, item)


def _use_kernels() -> None:
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
        inputs = torch.zeros(2, 16, 64, requires_grad=True)
        loss = torch.nn.functional.cross_entropy(layer(inputs).flatten(0, 1), torch.zeros(32, dtype=torch.long))
        loss.backward()  # type: ignore[no-untyped-call]


def _reserve(registry: Registry, name: str, optimizer: Optimizer) -> None:
    """One step with gradients of zero shows which state the optimizer keeps; the registry remembers the memory."""
    if optimizer.state:
        return
    parameters = parameters_of(optimizer)
    before = [parameter.detach().clone() for parameter in parameters]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for index, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    registry.reserved[f"{name}/state/{index}/{key}"] = value
    except Exception:
        registry.reserved.clear()  # an optimizer that needs a closure, or more: its state is made when needed
    finally:
        optimizer.state.clear()
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
                parameter.grad = None
