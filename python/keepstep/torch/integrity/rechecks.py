"""Checks protected state again once training runs: what was empty when registered may hold anything later.

A replacement builds what `run.setup` builds and is filled from a peer. So it must be possible to send what a peer
holds, and modules and optimizers must still have the parameters from before the first step. Otherwise the first fault
would end the job. These checks end it at the commit that causes this, and name the cause.
"""

from __future__ import annotations

import time

import torch
from torch.nn.parameter import is_lazy

from keepstep._errors import KeepstepError
from keepstep.torch.state.frozen import Adopts
from keepstep.torch.state.registry import Registry, buffer_in, buffer_slots, describe, parameters_of

FIRST_COMMITS = 3  # of this process: checks after each of them
_SHARE = 1000  # from then on checks take at most this fraction of the time


class Rechecks:
    """The rechecks of one worker, made before it is first hydrated. For the main thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        built = _of_build(registry)
        for name, tensor in built.items():
            if is_lazy(tensor):
                raise KeepstepError(
                    f"state: '{name}' has no shape before the first forward, so a replacement could not be filled. "
                    "Write model(example), with a batch of the right shape, in the function that run.setup calls"
                )
        self._tensors = {name: (list(tensor.shape), describe(tensor)) for name, tensor in built.items()}
        self._may_come = _empty_buffers(registry)
        self._parameters = {name: len(parameters_of(item)) for name, item in _optimizers(registry)}
        self._looks = 0
        self._next = 0.0  # on the monotonic clock

    def after(self, step: int, adopts: Adopts) -> None:
        """Called after the commit of `step`, while its state is intact, and before that is copied.

        `adopts`: see `Frozen.recheck`; a collective where ranks hold different parts.

        Raises:
            KeepstepError: from now on a fault would end the job; names the entry and what to write.
        """
        began = time.monotonic()
        if step > FIRST_COMMITS and self._looks >= FIRST_COMMITS and began < self._next:
            return
        self._looks += 1
        self._check_built(step)
        self._registry.check_carried()
        self._registry.frozen.recheck(step, self._registry.updated(), adopts if step <= FIRST_COMMITS else None)
        ended = time.monotonic()
        self._next = ended + _SHARE * (ended - began)

    def _check_built(self, step: int) -> None:
        since = f"by step {step}; it was not so when training began, and a replacement is built as it was then"
        now = _of_build(self._registry)
        for name, tensor in now.items():
            known = self._tensors.get(name)
            if known is None and name in self._may_come:
                continue
            if known is None:
                raise KeepstepError(
                    f"state: '{name}' {describe(tensor)} was added {since}, so it could not be filled after a fault. "
                    "Add it in the function that run.setup calls; what is not used yet can have requires_grad=False"
                )
            if known[0] != list(tensor.shape):
                raise KeepstepError(
                    f"state: '{name}' is {describe(tensor)} {since}: {known[1]}. Give it this shape in the function "
                    "that run.setup calls"
                )
        for name in self._tensors.keys() - now.keys():
            raise KeepstepError(
                f"state: '{name}' {self._tensors[name][1]} was removed {since}, with it. Remove it in the function "
                "that run.setup calls"
            )
        for name, item in _optimizers(self._registry):
            count = len(parameters_of(item))
            if count != self._parameters.get(name, count):
                raise KeepstepError(
                    f"state: the optimizer '{name}' has {count} parameters {since}, with "
                    f"{self._parameters[name]}. Give it all of them in the function that run.setup calls; a group that "
                    "is not trained yet can have lr=0.0 and parameters with requires_grad=False"
                )


def _optimizers(registry: Registry) -> list[tuple[str, torch.optim.Optimizer]]:
    return [(name, item) for name, item in registry.objects.items() if isinstance(item, torch.optim.Optimizer)]


def _empty_buffers(registry: Registry) -> set[str]:
    """Names of what a replacement can create when it is hydrated."""
    return {
        f"{owner}/{path}"
        for owner, item in registry.objects.items()
        if isinstance(item, torch.nn.Module)
        for path, slot in buffer_slots(item)
        if (buffer := buffer_in(slot)) is None or (not is_lazy(buffer) and buffer.numel() == 0)
    }


def _of_build(registry: Registry) -> dict[str, torch.Tensor]:
    """What has the same names and shapes in each process that builds: all but None or empty buffers."""
    found: dict[str, torch.Tensor] = {}
    for name, item in registry.objects.items():
        if isinstance(item, torch.Tensor):
            found[name] = item
        elif isinstance(item, torch.nn.Module):
            found.update((f"{name}/{key}", parameter) for key, parameter in item.named_parameters())
            buffers = item.named_buffers()
            found.update((f"{name}/{key}", each) for key, each in buffers if is_lazy(each) or each.numel() > 0)
    return found
