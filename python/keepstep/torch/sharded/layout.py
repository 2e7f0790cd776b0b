"""What a copy of sharded state consists of: determined once, and from then on only checked to be still valid.

Walking a model, its optimizer and their DTensors takes milliseconds; checking that the same tensors are where they
were takes a fraction of one. What changes from step to step (learning rates, counters) is read every time.
"""

from __future__ import annotations

import json
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch.optim import Optimizer

from keepstep.torch.sharded import fsdp
from keepstep.torch.state.frozen import FROZEN
from keepstep.torch.state.registry import Flat, Registry, laid_out_like, state_of
from keepstep.torch.tensors import dtensor
from keepstep.torch.tensors.memory import Region, dense, region


def _ids(values: Any) -> list[int]:
    return [*map(id, values)]


def _tensor_ids(state: dict[str, Any]) -> list[int]:
    return [id(value) for value in state.values() if isinstance(value, torch.Tensor)]


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


# Runs after every step while the training thread waits, so no Python loop over all tensors.
_local = attrgetter("_local_tensor")
_values = methodcaller("values")


def _places(tensors: list[torch.Tensor], dtensors: list[Any]) -> tuple[list[int], list[int]]:
    every = [*tensors, *map(_local, dtensors)]  # what a DTensor holds may be replaced while it stays
    return [*map(torch.Tensor.data_ptr, every)], [*map(torch.Tensor.numel, every)]


def _contents(holders: list[Any]) -> tuple[list[int], list[int]]:
    return [*map(len, holders)], _ids(chain.from_iterable(map(_values, holders)))


class ShardLayout:
    """The tensors of a copy, in order, and the constant part of its text.

    Attributes:
        tensors: what is copied; kept alive by this object. Those that are not dense are copied through stand-ins.
        regions: of the dense ones.
    """

    def __init__(self, registry: Registry, capsule_ids: set[int]) -> None:
        self._registry = registry
        self._capsule_ids = set(capsule_ids)
        self._fsdp = list(fsdp.fsdp_modules(registry.modules()))
        for part in self._fsdp:
            part.reshard()  # parameters that a forward without backward left whole
        flat = registry.flatten_sent(capsule_ids)
        self._frozen: dict[str, str] = flat.values.get(FROZEN, {})  # their digests, which stay as they are
        self.tensors = list(flat.tensors.values())
        self._strided = [number for number, tensor in enumerate(self.tensors) if not tensor.is_contiguous()]
        self.regions: list[Region] = [region(dense(tensor)) for tensor in self.tensors]
        self._head = json.dumps(
            {
                "tensors": [
                    [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                    for name, tensor in flat.tensors.items()
                ],
                # Of those that are parts: the global shape, and the part's offset.
                "layout": {name: list(dtensor.offsets(tensor)) for name, tensor in flat.dtensors.items()},
            }
        ).removesuffix("}")
        self._objects = _ids(registry.objects.values())
        self._watch()
        self._small = {name: _place(tensor) for name, tensor in self.rest().tensors.items()}

    def _watch(self) -> None:
        """Remembers which objects hold the tensors of modules and optimizers, and their addresses."""
        self._modules: list[torch.nn.Module] = []
        self._holders: list[Any] = []  # dicts whose values must stay the same objects
        self._mixed: list[tuple[dict[str, Any], list[str], list[int]]] = []  # with other values than tensors
        self._loose: list[tuple[str, dict[str, Any], str]] = []  # these values: they may change
        self._optimizers: list[tuple[Optimizer, Any, list[list[int]]]] = []
        watched: list[torch.Tensor] = []
        for module in self._registry.modules():
            for part in module.modules():
                self._modules.append(part)  # while it is alive nothing else has its id
                self._holders += [part._parameters, part._buffers, part._modules]
                watched += [each for each in (*part._parameters.values(), *part._buffers.values()) if each is not None]
        for name, item in self._registry.objects.items():
            if not isinstance(item, Optimizer):
                continue
            states = state_of(item)
            self._optimizers.append((item, states, [_ids(group["params"]) for group in item.param_groups]))
            self._holders.append(states)
            parameters = [parameter for group in item.param_groups for parameter in group["params"]]
            watched += parameters
            for index, parameter in enumerate(parameters):
                state = states.get(parameter, {})
                loose = [key for key, value in state.items() if not laid_out_like(value, parameter)]
                watched += [value for value in state.values() if isinstance(value, torch.Tensor)]
                if loose:
                    self._mixed.append((state, [*state], _tensor_ids(state)))
                    self._loose += [(f"{name}/state/{index}/{key}", state, key) for key in loose]
                else:
                    self._holders.append(state)
        once = {id(tensor): tensor for tensor in watched}.values()
        self._dtensors: list[Any] = [tensor for tensor in once if dtensor.is_dtensor(tensor)]
        self._plain = [tensor for tensor in once if not dtensor.is_dtensor(tensor)]
        self._places = _places(self._plain, self._dtensors)
        self._contents = _contents(self._holders)

    def _same_tensors(self) -> bool:
        return (
            _contents(self._holders) == self._contents
            and all([*state] == keys and _tensor_ids(state) == ids for state, keys, ids in self._mixed)
            and all(
                state_of(item) is state and [_ids(group["params"]) for group in item.param_groups] == ids
                for item, state, ids in self._optimizers
            )
            and _places(self._plain, self._dtensors) == self._places
        )

    def rest(self) -> Flat:
        """The rest, as it is now: neither in modules nor tensors of an optimizer's state; mostly small values."""
        flat = self._registry.flatten_rest()
        for path, state, key in self._loose:
            flat.add(path, state[key])
        if self._frozen:
            flat.values[FROZEN] = self._frozen
        return flat

    def again(self, capsule_ids: set[int]) -> Flat | None:
        """The current values; None if other tensors are protected or they have moved: the layout is then invalid."""
        for part in self._fsdp:
            part.reshard()
        objects = _ids(self._registry.objects.values())
        if capsule_ids != self._capsule_ids or objects != self._objects or not self._same_tensors():
            return None
        if self._registry.frozen_names() != self._frozen.keys():
            return None
        rest = self.rest()
        if {name: _place(tensor) for name, tensor in rest.tensors.items()} != self._small:
            return None
        return rest

    def stand_ins(self) -> list[torch.Tensor]:
        """Points the regions at dense tensors; returns tensors to keep alive until they are copied."""
        held = []
        for number in self._strided:
            held.append(dense(self.tensors[number]))
            self.regions[number] = region(held[-1])
        return held

    def text(self, values: dict[str, Any], capsule: str) -> bytes:
        """JSON: names, types and shapes of the tensors; of those that are parts the layout; values and capsule."""
        return f'{self._head}, "values": {json.dumps(values)}, "capsule": "{capsule}"}}'.encode()
