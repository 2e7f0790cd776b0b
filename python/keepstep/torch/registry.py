"""What ``run.protect`` registered, flattened into tensors and small values with stable names.

Names are paths: ``model/blocks.0.weight``, ``optimizer/state/3/exp_avg``, ``optimizer/groups``. Tensors travel as
bytes; values as JSON. Nothing is pickled. Per-rank buffers that forward changes are not here but in the capsule
(`keepstep.torch.capsule`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from keepstep._errors import KeepstepError
from keepstep.torch import cuda, sharding


@dataclass
class Flat:
    """One moment's view: tensors by name in a fixed order, and JSON-able values by name."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    dtensors: dict[str, torch.Tensor] = field(default_factory=dict)  # of those in `tensors` that are the local part

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Of a DTensor what this rank holds."""
        self.tensors[name] = part = sharding.local(tensor)
        if part is not tensor:
            self.dtensors[name] = tensor


def describe(tensor: torch.Tensor) -> str:
    """``float32[512, 64]``"""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def checked_value(name: str, value: Any) -> Any:
    """`value` as JSON can carry it exactly; tuples become lists on the way, so they are marked."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, (list, tuple)):
        items = [checked_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        return {"__dict__": [[checked_value(name, k), checked_value(f"{name}.{k}", v)] for k, v in value.items()]}
    raise KeepstepError(
        f"protect: '{name}' is a {type(value).__module__}.{type(value).__qualname__}, which keepstep cannot carry to "
        "another process: tensors, numbers, strings, None, lists, tuples and dicts of them can. Keep it out of the "
        "protected object's state_dict, or turn it into one of these."
    )


def _restore_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore_value(item) for item in value]
    if isinstance(value, dict):
        if "__float__" in value:
            return float(value["__float__"])
        if "__tuple__" in value:
            return tuple(_restore_value(item) for item in value["__tuple__"])
        return {_restore_value(k): _restore_value(v) for k, v in value["__dict__"]}
    return value


class Beside(Protocol):
    """What belongs to the protected objects beside tensors and values (`keepstep.torch.committed`)."""

    def value(self) -> dict[str, Any]: ...

    def load(self, value: dict[str, Any]) -> None: ...


_BESIDE = "/beside"  # its name among the values


class Registry:
    """The protected objects of one worker. `beside`: is carried with them."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.reserved: dict[str, torch.Tensor] = {}  # memory for optimizer state, see parked.py
        self._optimizers: list[Optimizer] = []
        self._parameters: list[torch.Tensor] = []  # of modules and optimizers, each once
        self.beside: Beside | None = None
        self._held: list[int] | None = None  # ids of what the optimizers held then; None: not listed since a change

    def add(self, name: str, item: Any) -> None:
        known = self.objects.get(name)
        if known is not None and known is not item:
            raise KeepstepError(
                f"protect: '{name}' is another object than in the previous entry of the training function. Build it "
                "inside run.keep(build), which returns the same object in every entry."
            )
        for other, existing in self.objects.items():
            if existing is item and other != name:
                raise KeepstepError(f"protect: '{name}' and '{other}' are the same object; protect it once")
        if not (
            isinstance(item, (torch.nn.Module, Optimizer, torch.Tensor, dict))
            or (hasattr(item, "state_dict") and hasattr(item, "load_state_dict"))
        ):
            raise KeepstepError(
                f"protect: '{name}' is a {type(item).__qualname__}; a module, an optimizer, a tensor, a dict of "
                "tensors, or an object with state_dict() and load_state_dict() is needed"
            )
        if is_partitioned(item) and item._overlap_with_ddp:
            raise KeepstepError(
                f"protect: '{name}' is a ZeroRedundancyOptimizer that updates parameters while DDP reduces gradients, "
                "before the ranks voted on the step; make it with overlap_with_ddp=False"
            )
        self.objects[name] = item
        self._held = None

    def clear(self) -> None:
        """Forgets everything: it will be built and protected anew."""
        self.objects.clear()
        self.reserved.clear()
        self._optimizers = []
        self._parameters = []
        self._held = None

    def modules(self) -> Iterator[torch.nn.Module]:
        for item in self.objects.values():
            if isinstance(item, torch.nn.Module):
                yield item

    def optimizers(self) -> Iterator[Optimizer]:
        for item in self.objects.values():
            if isinstance(item, Optimizer):
                yield item

    def cuda_devices(self) -> list[torch.device]:
        """The CUDA devices that protected modules and tensors are on."""
        tensors = [parameter for module in self.modules() for parameter in module.parameters()]
        return cuda.devices_of([*tensors, *(item for item in self.objects.values() if isinstance(item, torch.Tensor))])

    def check_carried(self) -> None:
        """Raises by name for what no peer could be hydrated with."""
        for name, tensor in self.flatten().tensors.items():
            if tensor.device.type not in ("cpu", "cuda"):
                raise KeepstepError(
                    f"protect: '{name}' is on {tensor.device}; keepstep carries tensors in main memory and on CUDA "
                    "devices"
                )
            if tensor.layout is not torch.strided:
                raise KeepstepError(f"protect: '{name}' has the layout {tensor.layout}; dense tensors can be carried")

    def list_parameters(self) -> None:
        """Once before the loop: to walk a large model's modules takes longer than all else that a commit does."""
        self._optimizers = list(self.optimizers())
        held: list[torch.Tensor] = [tensor for optimizer in self._optimizers for tensor in parameters_of(optimizer)]
        self._held = [id(tensor) for tensor in held]
        found: dict[int, torch.Tensor] = {id(p): p for module in self.modules() for p in module.parameters()}
        found.update(zip(self._held, held, strict=True))
        self._parameters = list(found.values())

    def drop_gradients(self) -> None:
        """All gradients of listed parameters and of what optimizers hold become None."""
        if self._held is None or self._held != [
            id(tensor)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for tensor in group["params"]
        ]:
            self.list_parameters()  # an optimizer got other parameters since
        for parameter in self._parameters:
            parameter.grad = None

    def flatten(self, capsule_buffers: set[int] | None = None) -> Flat:
        """Everything protected, right now. `capsule_buffers`: ids of buffers that travel in the capsule instead."""
        flat = Flat()
        for name, item in self.objects.items():
            if isinstance(item, torch.nn.Module):
                for key, parameter in item.named_parameters():
                    flat.put(f"{name}/{key}", parameter.data)
                for key, buffer in item.named_buffers():
                    if capsule_buffers is None or id(buffer) not in capsule_buffers:
                        flat.put(f"{name}/{key}", buffer)
            elif isinstance(item, Optimizer):
                self._flatten_optimizer(name, item, flat)
            else:
                self._flatten_other(name, item, flat)
        self._flatten_beside(flat)
        return flat

    def flatten_rest(self) -> Flat:
        """Of `flatten` what is neither a module's nor in the state of an optimizer."""
        flat = Flat()
        for name, item in self.objects.items():
            if isinstance(item, Optimizer):
                self._flatten_groups(name, item, flat)
            elif not isinstance(item, torch.nn.Module):
                self._flatten_other(name, item, flat)
        self._flatten_beside(flat)
        return flat

    def _flatten_beside(self, flat: Flat) -> None:
        if self.beside is not None and (value := self.beside.value()):
            flat.values[_BESIDE] = value

    def _flatten_other(self, name: str, item: Any, flat: Flat) -> None:
        if isinstance(item, torch.Tensor):
            flat.put(name, item.detach())
        else:
            self._flatten_state(name, item if isinstance(item, dict) else item.state_dict(), flat)

    @staticmethod
    def _flatten_optimizer(name: str, optimizer: Optimizer, flat: Flat) -> None:
        states = state_of(optimizer)
        for index, parameter in enumerate(parameters_of(optimizer)):
            for key, value in states.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    flat.put(f"{name}/state/{index}/{key}", value.detach())
                else:
                    path = f"{name}/state/{index}/{key}"
                    flat.values[path] = checked_value(path, value)
        Registry._flatten_groups(name, optimizer, flat)

    @staticmethod
    def _flatten_groups(name: str, optimizer: Optimizer, flat: Flat) -> None:
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                path = f"{name}/groups/{number}/{key}"
                if key == "params":
                    continue
                if isinstance(value, torch.Tensor):
                    flat.put(path, value.detach())
                else:
                    flat.values[path] = checked_value(path, value)

    @staticmethod
    def _flatten_state(name: str, state: dict[str, Any], flat: Flat) -> None:
        for key, value in state.items():
            if not isinstance(key, str):
                raise KeepstepError(f"protect: '{name}' has the key {key!r}; keys of a state must be strings")
            if isinstance(value, torch.Tensor):
                flat.put(f"{name}/{key}", value.detach())
            else:
                flat.values[f"{name}/{key}"] = checked_value(f"{name}/{key}", value)

    def sharded(self) -> bool:
        """Whether other ranks hold other parts of what is protected."""
        if any(is_partitioned(item) for item in self.objects.values()):
            return True
        return sharding.is_sharded(self.flatten().dtensors.values())

    def prepare(
        self, tensors: list[list[Any]], capsule_buffers: set[int], dtensors: set[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Makes room for what a peer's manifest lists, and returns the tensors to fill, in the manifest's order.

        `dtensors`: names of those that are local parts.

        Optimizer state that this process does not have yet (Adam before its first step) is allocated; state the peer
        does not have is dropped. Any other difference in names, shapes or dtypes is an error that names both sides.
        """
        self._drop_optimizer_state_beyond({entry[0] for entry in tensors})
        mine = self.flatten(capsule_buffers).tensors
        for name, dtype, shape in tensors:
            if name not in mine:
                self._allocate(name, getattr(torch, dtype), shape, dtensors is not None and name in dtensors)
        mine = self.flatten(capsule_buffers).tensors
        wanted: dict[str, torch.Tensor] = {}
        for name, dtype, shape in tensors:
            theirs = f"{dtype}{shape}"
            if name not in mine:
                raise KeepstepError(_mismatch(name, "nothing of that name", theirs))
            if describe(mine[name]) != theirs:
                raise KeepstepError(_mismatch(name, describe(mine[name]), theirs))
            wanted[name] = mine[name]
        for name in mine.keys() - wanted.keys():
            raise KeepstepError(_mismatch(name, describe(mine[name]), "nothing of that name"))
        return wanted

    def parts(self, names: Iterable[str]) -> dict[str, tuple[list[int], list[int]]]:
        """Of those of `names` that are, or will be, parts of DTensors here: the shapes of the whole and of the part."""
        mine = self.flatten().dtensors
        found = {}
        for name in names:
            whole = mine.get(name)
            if whole is None and (slot := self._optimizer_slot(name)) is not None:
                whole = slot[1]  # the state of a parameter is divided as the parameter is
            if whole is not None and sharding.is_dtensor(whole):
                found[name] = (list(whole.shape), list(sharding.local(whole).shape))
        return found

    def _optimizer_slot(self, name: str) -> tuple[Optimizer, torch.Tensor, str] | None:
        owner, _, rest = name.partition("/")
        item = self.objects.get(owner)
        parts = rest.split("/", 2)
        if not isinstance(item, Optimizer) or parts[0] != "state" or len(parts) != 3:
            return None
        parameters = parameters_of(item)
        index = int(parts[1])
        return (item, parameters[index], parts[2]) if index < len(parameters) else None

    def _drop_optimizer_state_beyond(self, names: set[str]) -> None:
        for name, item in self.objects.items():
            if isinstance(item, Optimizer):
                states = state_of(item)
                for index, parameter in enumerate(parameters_of(item)):
                    state = states.get(parameter, {})
                    for key in [k for k, v in state.items() if isinstance(v, torch.Tensor)]:
                        if f"{name}/state/{index}/{key}" not in names:
                            del state[key]
                    if parameter in states and not state:
                        del states[parameter]

    def _allocate(self, name: str, dtype: torch.dtype, shape: list[int], as_part: bool = False) -> None:
        slot = self._optimizer_slot(name)
        if slot is not None:
            optimizer, parameter, key = slot
            states = state_of(optimizer)
            reserved = self.reserved.pop(name, None)
            if reserved is not None and reserved.dtype == dtype and list(reserved.shape) == shape:
                states[parameter][key] = reserved
                return
            if as_part:
                if list(sharding.local(parameter.data).shape) == shape:
                    states[parameter][key] = torch.empty_like(parameter, dtype=dtype).detach()
                return
            # Step counters and other scalars live in main memory, whatever the device of the parameter, unless the
            # optimizer steps without the host (as torch.optim decides where its "step" is).
            device = parameter.device if shape or _on_device(optimizer, parameter) else torch.device("cpu")
            fresh = torch.empty(shape, dtype=dtype, device=device)
            if list(parameter.shape) == shape:
                fresh = torch.empty_like(parameter, dtype=dtype, memory_format=torch.preserve_format).detach()
            states[parameter][key] = fresh

    def load_values(self, values: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Takes over a peer's small values, and hands stateful objects their state_dict back."""
        if self.beside is not None:
            self.beside.load(values.get(_BESIDE, {}))
        for name, item in self.objects.items():
            prefix = f"{name}/"
            mine = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
            if isinstance(item, Optimizer):
                self._load_optimizer_values(item, mine)
            elif isinstance(item, dict):
                item.update({key: _restore_value(value) for key, value in mine.items()})
            elif not isinstance(item, (torch.nn.Module, torch.Tensor)):
                state = item.state_dict()
                state.update({key: _restore_value(value) for key, value in mine.items()})
                state.update(
                    {path.removeprefix(prefix): tensor for path, tensor in tensors.items() if path.startswith(prefix)}
                )
                item.load_state_dict(state)

    @staticmethod
    def _load_optimizer_values(optimizer: Optimizer, values: dict[str, Any]) -> None:
        parameters = parameters_of(optimizer)
        states = state_of(optimizer)
        for path, value in values.items():
            kind, number, key = path.split("/", 2)
            if kind == "state":
                states[parameters[int(number)]][key] = _restore_value(value)
            else:
                optimizer.param_groups[int(number)][key] = _restore_value(value)


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Of all its groups, in the order in which names of its state number them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_partitioned(item: object) -> bool:
    """Whether `item` is ZeRO-1 of torch: an optimizer that updates some of its parameters on each rank."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(item).__mro__)


def state_of(optimizer: Optimizer) -> Any:
    """Its state by parameter. Of one that is partitioned it is inside, in the optimizer of this rank's parameters."""
    return optimizer.optim.state if is_partitioned(optimizer) else optimizer.state  # type: ignore[attr-defined]


def updated_here(optimizer: Optimizer) -> set[int]:
    """Ids of the parameters that this rank updates."""
    inner: Optimizer = optimizer.optim if is_partitioned(optimizer) else optimizer  # type: ignore[attr-defined]
    return {id(parameter) for parameter in parameters_of(inner)}


def _on_device(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    """Whether the scalars of `parameter`'s state are on its device."""
    for group in optimizer.param_groups:
        if any(parameter is member for member in group["params"]):
            return bool(group.get("capturable") or group.get("fused"))
    return False


def _mismatch(name: str, mine: str, theirs: str) -> str:
    return (
        f"protect: this rank has '{name}' {mine}; its peer has {theirs}. All ranks must protect the same names, shapes "
        "and dtypes; is a config value read from the environment, or does build depend on something that differs?"
    )


def values_json(flat: Flat) -> str:
    """All small values of `flat`: the same text on every rank that holds the same."""
    return json.dumps(flat.values, sort_keys=True)


def manifest_json(flat: Flat) -> str:
    """What a peer needs to know to receive `flat`."""
    return json.dumps(
        {
            "tensors": [
                [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                for name, tensor in flat.tensors.items()
            ],
            "values": flat.values,
        }
    )
