"""64-bit digests of what a rank holds when it votes: all ranks must hold the same (docs/design/corruption.md)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel import replicas
from keepstep.torch.state.registry import Flat, Registry, is_partitioned, values_json
from keepstep.torch.tensors.digest import digest

if TYPE_CHECKING:
    from keepstep._session import Session


class Digests:
    """One worker's digests; `record` is called once per step, before the vote."""

    def __init__(self, session: Session, registry: Registry) -> None:
        self._session = session
        self._engine = session.engine
        self._registry = registry
        self._mode = session.welcome.digests
        self._every = session.welcome.digest_every
        self._rank = 0
        self._world_size = 1
        self._parameters: list[torch.Tensor] | None = None  # whose gradients are compared
        self._why_not: str | None = None
        self._said = False

    def enter(self, rank: int, world_size: int) -> None:
        """A new generation: models are wrapped again."""
        self._rank = rank
        self._world_size = world_size
        self._parameters = None
        self._why_not = None

    def record(self, step: int) -> None:
        """Gives the engine the digest that this rank votes for in `step`; nothing if there is nothing to compare."""
        if self._mode == "off" or self._world_size == 1:
            return
        gradients = self._of_gradients(step)
        # If gradients may differ, so may the resulting state.
        compared = self._why_not is None and self._every > 0 and step % self._every == 0
        state = self._of_state() if compared else 0
        if gradients or state:
            self._engine.record_digest(step, gradients, state)

    def _of_gradients(self, step: int) -> int:
        if self._parameters is None:
            self._parameters, self._why_not = self._compared()
        if self._why_not is None:
            gradients = [parameter.grad for parameter in self._parameters]
            self._why_not = _not_comparable(gradients)
            if self._why_not is None:
                return digest(gradients)
            if self._mode == "on":
                raise KeepstepError(f"--digests=on: {self._why_not}; start without it")
        self._say(step)
        return 0

    def _compared(self) -> tuple[list[torch.Tensor], str | None]:
        wrapped = replicas.wrapped_parameters()
        why_not = replicas.why_gradients_may_differ(self._world_size)
        if why_not == replicas.UNWRAPPED and not self._registry.sharded():
            why_not += (
                ", so each rank may train a model of its own. Write model = run.ddp(state.model), or average the "
                "gradients over the ranks before step.commit"
            )
        if self._mode == "on":
            why_not = None
        found: dict[int, torch.Tensor] = {}
        for module in self._registry.modules():
            for parameter in module.parameters():
                if not wrapped or id(parameter) in wrapped:
                    found[id(parameter)] = parameter
        return list(found.values()), why_not

    def _of_state(self) -> int:
        """The digest of parameters and optimizers. Not of other objects, which a script may let differ without harm.

        Nor of buffers: forward changes them independently on each rank.
        """
        buffers = {id(buffer) for module in self._registry.modules() for buffer in module.buffers()}
        whole = self._registry.flatten(buffers)
        owners = {
            name
            for name, item in self._registry.objects.items()
            if isinstance(item, (torch.nn.Module, torch.optim.Optimizer)) and not is_partitioned(item)
        }
        # By name: a hydrated optimizer may have its state in another order.
        flat = Flat(
            {name: whole.tensors[name] for name in sorted(whole.tensors) if name.partition("/")[0] in owners},
            {name: value for name, value in whole.values.items() if name.partition("/")[0] in owners},
        )
        values = torch.frombuffer(bytearray(values_json(flat).encode()), dtype=torch.uint8)
        return digest([*flat.tensors.values(), values])

    def _say(self, step: int) -> None:
        if not self._said and self._rank == 0:
            because = f"gradients and state are not compared between ranks: {self._why_not}"
            print(f"keepstep: {because}", file=sys.stderr)
            self._session.note("not_compared", step, because)
        self._said = True


def _not_comparable(gradients: list[torch.Tensor | None]) -> str | None:
    for gradient in gradients:
        if gradient is not None and type(gradient) is not torch.Tensor:
            return f"a gradient is a {type(gradient).__qualname__}, of which each rank may hold another part"
        if gradient is not None and gradient.layout is not torch.strided:
            return f"a gradient has the layout {gradient.layout}, whose entries may come in another order on each rank"
    return None
