"""A copy of the protected state, for updates that communicate and may have to be undone."""

from __future__ import annotations

from collections.abc import Container

import torch

from keepstep.torch.state import extra_state
from keepstep.torch.state.frozen import FROZEN
from keepstep.torch.state.registry import BESIDE, Registry


class Snapshot:
    """The protected tensors and values at the time it was made, without modes; needs as much memory as they do.

    `leave_out`: frozen parameters, which are left as they are.
    """

    def __init__(self, registry: Registry, leave_out: Container[str] = ()) -> None:
        self._registry = registry
        flat = registry.flatten()
        self._tensors = {name: tensor.clone() for name, tensor in flat.tensors.items() if name not in leave_out}
        self._extra = extra_state.named(registry.objects)
        self._taken = extra_state.take(self._extra)
        self._values = {name: value for name, value in flat.values.items() if name != BESIDE}
        if leave_out:
            self._values[FROZEN] = registry.frozen.digests(leave_out)

    def restore(self) -> None:
        """Restores everything in place; drops optimizer state that did not exist yet."""
        entries = [
            [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in self._tensors.items()
        ]
        targets = self._registry.prepare(entries, self._values, set())
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(self._tensors[name])
        self._registry.load_values(self._values, targets)
        extra_state.put_back(self._extra, self._taken)
