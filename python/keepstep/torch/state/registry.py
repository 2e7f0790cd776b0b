"""What ``run.setup`` registered, flattened into tensors and small values with stable names.

Names are paths: ``model/blocks.0.weight``, ``optimizer/state/3/exp_avg``, ``optimizer/groups``. Tensors are sent as
bytes, values as JSON, which also says where lists and dicts contain tensors (carried.py). Nothing is pickled.
Per-rank buffers that forward changes are not here but in the capsule (capsule.py).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from keepstep._errors import KeepstepError
from keepstep.torch.state import carried
from keepstep.torch.state.frozen import FROZEN, Frozen
from keepstep.torch.tensors import cuda, dtensor

Slot = tuple[dict[str, torch.Tensor | None], str]  # a module's buffers, and a name among them


@dataclass
class Flat:
    """The state at one moment: tensors by name in a fixed order, and JSON-able values by name."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    dtensors: dict[str, torch.Tensor] = field(default_factory=dict)  # of those in `tensors` that are local parts

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Adds a tensor; of a DTensor, the part that this rank holds."""
        if name in self.tensors:
            raise KeepstepError(
                f"state: two tensors are called '{name}': a key with a dot and one inside a list or dict. Rename one."
            )
        self.tensors[name] = part = dtensor.local(tensor)
        if part is not tensor:
            self.dtensors[name] = tensor

    def add(self, path: str, value: Any) -> None:
        """Adds a value and the tensors in it; or a tensor, whose mark goes to the values."""
        self.values[path] = carried.split(path, value, self.put)


def describe(tensor: torch.Tensor) -> str:
    """``float32[512, 64]``"""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


class Beside(Protocol):
    """What protected objects have besides tensors and values (`keepstep.torch.recovery.committed`)."""

    def value(self) -> dict[str, Any]: ...

    def load(self, value: dict[str, Any]) -> None: ...


BESIDE = "/beside"  # its name among the values


class Registry:
    """The protected objects of one worker. `beside` is sent with them."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.reserved: dict[str, torch.Tensor] = {}  # memory for optimizer state, see parked.py
        self._optimizers: list[Optimizer] = []
        self._parameters: list[torch.Tensor] = []  # of modules and optimizers, each once
        self.beside: Beside | None = None
        self.frozen = Frozen()
        self._none_at_first: dict[str, Slot] = {}  # buffers
        self._held: list[int] | None = None  # ids of what the optimizers held then; None: not listed since a change

    def add(self, name: str, item: Any) -> None:
        known = self.objects.get(name)
        if known is not None and known is not item:
            raise KeepstepError(f"state: '{name}' is another object than before; two calls of run.setup protect it")
        for other, existing in self.objects.items():
            if existing is item and other != name:
                raise KeepstepError(f"state: '{name}' and '{other}' are the same object; protect it once")
        if not (
            isinstance(item, (torch.nn.Module, Optimizer, torch.Tensor, dict))
            or (hasattr(item, "state_dict") and hasattr(item, "load_state_dict"))
        ):
            raise KeepstepError(
                f"state: '{name}' is a {type(item).__qualname__}; a module, an optimizer, a tensor, a dict of "
                "tensors, or an object with state_dict() and load_state_dict() is needed"
            )
        if is_partitioned(item) and item._overlap_with_ddp:
            raise KeepstepError(
                f"state: '{name}' is a ZeroRedundancyOptimizer that updates parameters while DDP reduces gradients, "
                "before the ranks voted on the step; make it with overlap_with_ddp=False"
            )
        if known is None and isinstance(item, torch.nn.Module):
            slots = ((f"{name}/{path}", slot) for path, slot in buffer_slots(item))
            self._none_at_first.update((path, slot) for path, slot in slots if buffer_in(slot) is None)
            self.frozen.add(name, item)
        self.objects[name] = item
        self._held = None

    def clear(self) -> None:
        """Forgets everything: it will be built and protected again."""
        self.objects.clear()
        self.reserved.clear()
        self._none_at_first.clear()
        self.frozen.clear()
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

    def protects_some_of(self, module: torch.nn.Module) -> bool:
        """Whether `module` shares a parameter with a protected module, or has no parameters."""
        mine = {id(parameter) for protected in self.modules() for parameter in protected.parameters()}
        parameters = list(module.parameters())
        return not parameters or any(id(parameter) in mine for parameter in parameters)

    def cuda_devices(self) -> list[torch.device]:
        """The CUDA devices of protected modules and tensors."""
        tensors = [parameter for module in self.modules() for parameter in module.parameters()]
        return cuda.devices_of([*tensors, *(item for item in self.objects.values() if isinstance(item, torch.Tensor))])

    def check_carried(self) -> None:
        """Raises an error that names what could not be sent to a peer."""
        for name, tensor in self.flatten().tensors.items():
            if tensor.device.type not in ("cpu", "cuda"):
                raise KeepstepError(
                    f"state: '{name}' is on {tensor.device}; keepstep carries tensors in main memory and on CUDA "
                    "devices"
                )
            if tensor.layout is not torch.strided:
                raise KeepstepError(f"state: '{name}' has the layout {tensor.layout}; dense tensors can be carried")

    def list_parameters(self) -> None:
        """Called once before the loop: walking a large model's modules takes longer than the rest of a commit."""
        self._optimizers = list(self.optimizers())
        held: list[torch.Tensor] = [tensor for optimizer in self._optimizers for tensor in parameters_of(optimizer)]
        self._held = [id(tensor) for tensor in held]
        found: dict[int, torch.Tensor] = {id(p): p for module in self.modules() for p in module.parameters()}
        found.update(zip(self._held, held, strict=True))
        self._parameters = list(found.values())

    def drop_gradients(self) -> None:
        """Sets the gradients of listed parameters, and of those that optimizers hold, to None."""
        if self._held is None or self._held != [
            id(tensor)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for tensor in group["params"]
        ]:
            self.list_parameters()  # an optimizer has got other parameters since
        for parameter in self._parameters:
            parameter.grad = None

    def flatten(self, capsule_buffers: set[int] | None = None) -> Flat:
        """Everything protected, as it is now. `capsule_buffers`: ids of buffers that the capsule holds instead."""
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

    def flatten_sent(self, capsule_buffers: set[int]) -> Flat:
        """What a peer, or a checkpoint, must have: without frozen parameters, but with their digests."""
        flat = self.flatten(capsule_buffers)
        if names := self.frozen_names():
            for name in names:
                del flat.tensors[name]
                flat.dtensors.pop(name, None)
            flat.values[FROZEN] = self.frozen.digests(names)
        return flat

    def frozen_names(self) -> set[str]:
        """Parameters that every process builds, and no update changes."""
        return self.frozen.names(self.updated()) if self.frozen else set()

    def updated(self) -> set[int]:
        """Ids of the parameters that protected optimizers have."""
        return {id(parameter) for optimizer in self.optimizers() for parameter in parameters_of(optimizer)}

    def flatten_rest(self) -> Flat:
        """The part of `flatten` that belongs neither to a module nor to an optimizer's state."""
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
            flat.values[BESIDE] = value

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
                path = f"{name}/state/{index}/{key}"
                if laid_out_like(value, parameter):
                    flat.put(path, value.detach())
                else:
                    flat.add(path, value)
        Registry._flatten_groups(name, optimizer, flat)

    @staticmethod
    def _flatten_groups(name: str, optimizer: Optimizer, flat: Flat) -> None:
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key != "params":
                    flat.add(f"{name}/groups/{number}/{key}", value)

    @staticmethod
    def _flatten_state(name: str, state: dict[str, Any], flat: Flat) -> None:
        for key, value in state.items():
            if not isinstance(key, str):
                raise KeepstepError(f"state: '{name}' has the key {key!r}; keys of a state must be strings")
            flat.add(f"{name}/{key}", value)

    def sharded(self) -> bool:
        """Whether other ranks hold other parts of the protected state."""
        if any(is_partitioned(item) for item in self.objects.values()):
            return True
        return dtensor.is_sharded(self.flatten().dtensors.values())

    def prepare(
        self,
        tensors: list[list[Any]],
        values: dict[str, Any],
        capsule_buffers: set[int],
        dtensors: set[str] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Allocates what a peer's manifest lists, and returns the tensors to fill, in the manifest's order.

        `values`: the peer's values, which say where lists and dicts contain tensors; `dtensors`: names of local parts.
        `load_values` then inserts what was made for a list, a dict or an object's state_dict.

        State that this process does not have yet (an optimizer's before its first step, or what was None or empty when
        registered) is allocated. Optimizer state that the peer does not have is dropped, and buffers that were None
        become None again. Any other difference in names, shapes or dtypes is an error that names both sides.
        """
        names = {entry[0] for entry in tensors}
        self._drop_optimizer_state_beyond(names | values.keys())
        for name, (buffers, key) in self._none_at_first.items():
            if name not in names and id(buffers.get(key)) not in capsule_buffers:
                buffers[key] = None
        marks = dict(mark for path, value in values.items() for mark in carried.marks(path, value))
        mine = self.flatten(capsule_buffers).tensors
        made: dict[str, torch.Tensor] = {}
        for name, dtype, shape in tensors:
            here = mine.get(name)
            as_part = dtensors is not None and name in dtensors
            mark = marks.get(name)
            if here is not None and describe(here) == f"{dtype}{shape}" and (mark is None or mark.fits(here)):
                continue
            if mark is not None and not as_part and (here is None or self._replaceable(name, here, name in values)):
                made[name] = mark.make(shape, getattr(torch, dtype), self._device(name, mark.device))
            elif here is None or here.numel() == 0:
                self.allocate(name, getattr(torch, dtype), shape, as_part)
        flat = self.flatten(capsule_buffers)
        mine = flat.tensors
        wanted: dict[str, torch.Tensor] = {}
        for name, dtype, shape in tensors:
            theirs = f"{dtype}{shape}"
            here = made.get(name, mine.get(name))
            if here is None:
                raise KeepstepError(_mismatch(name, "nothing of that name", theirs))
            if describe(here) != theirs:
                raise KeepstepError(_mismatch(name, describe(here), theirs))
            wanted[name] = here
        for name in mine.keys() - wanted.keys() - values.get(FROZEN, {}).keys():
            if name not in values and not self._replaceable(name, mine[name], name in flat.values):
                raise KeepstepError(_mismatch(name, describe(mine[name]), "nothing of that name"))
        return wanted

    def _replaceable(self, name: str, tensor: torch.Tensor, entry: bool) -> bool:
        """Whether another tensor may replace this one. `entry`: it is itself an entry of its object's state, not inside
        a list or a dict in it."""
        item = self.objects[name.partition("/")[0]]
        if isinstance(item, dict):
            return not entry or tensor.numel() == 0  # or else others may hold it, too
        return not isinstance(item, (torch.nn.Module, torch.Tensor))

    def _device(self, name: str, kind: str) -> torch.device:
        """The device for a tensor made here that a peer has on a device of that kind."""
        slot = self._optimizer_slot(name)
        if slot is not None and slot[1].device.type == kind:
            return slot[1].device
        return torch.device(kind)

    def parts(self, names: Iterable[str]) -> dict[str, tuple[list[int], list[int]]]:
        """For those of `names` that are or will be parts of DTensors here: the shapes of the whole and of the part."""
        mine = self.flatten().dtensors
        found = {}
        for name in names:
            whole = mine.get(name)
            if whole is None and (slot := self._optimizer_slot(name)) is not None:
                whole = slot[1]  # the state of a parameter is divided as the parameter is
            if whole is not None and dtensor.is_dtensor(whole):
                found[name] = (list(whole.shape), list(dtensor.local(whole).shape))
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
                    for key in list(state):
                        if f"{name}/state/{index}/{key}" not in names:
                            del state[key]
                    if parameter in states and not state:
                        del states[parameter]

    def allocate(self, name: str, dtype: torch.dtype, shape: list[int], as_part: bool = False) -> None:
        """Allocates optimizer state or a buffer that this process does not have yet; does nothing for other names."""
        slot = self._optimizer_slot(name)
        if slot is not None:
            optimizer, parameter, key = slot
            states = state_of(optimizer)
            reserved = self.reserved.pop(name, None)
            if reserved is not None and reserved.dtype == dtype and list(reserved.shape) == shape:
                states[parameter][key] = reserved
                return
            if as_part:
                if list(dtensor.local(parameter.data).shape) == shape:
                    states[parameter][key] = torch.empty_like(parameter, dtype=dtype).detach()
                return
            # Step counters and other scalars live in main memory, whatever the device of the parameter, unless the
            # optimizer steps without the host (as torch.optim decides where its "step" is).
            device = parameter.device if shape or _on_device(optimizer, parameter) else torch.device("cpu")
            fresh = torch.empty(shape, dtype=dtype, device=device)
            if list(parameter.shape) == shape:
                fresh = torch.empty_like(parameter, dtype=dtype, memory_format=torch.preserve_format).detach()
            states[parameter][key] = fresh
            return
        owner, _, path = name.partition("/")
        item = self.objects.get(owner)
        if isinstance(item, torch.nn.Module) and (empty := empty_slot(item, path)) is not None:
            device = next((parameter.device for parameter in item.parameters()), torch.device("cpu"))
            empty[0][empty[1]] = torch.empty(shape, dtype=dtype, device=device)

    def load_values(self, values: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Loads a peer's small values, and gives stateful objects their state_dict back."""
        if self.beside is not None:
            self.beside.load(values.get(BESIDE, {}))
        frozen = values.get(FROZEN, {})
        self.frozen.require_built(frozen)
        self.frozen.require_same(frozen)
        for name, item in self.objects.items():
            prefix = f"{name}/"
            mine = {path: value for path, value in values.items() if path.startswith(prefix)}
            if isinstance(item, Optimizer):
                self._load_optimizer_values(item, name, mine, tensors)
            elif not isinstance(item, (torch.nn.Module, torch.Tensor)):
                state = item if isinstance(item, dict) else item.state_dict()
                inside = {inner for path, value in mine.items() for inner, _ in carried.marks(path, value)}
                for key in state:
                    if (path := prefix + key) in tensors and path not in inside:  # from an older checkpoint
                        state[key] = carried.joined(path, {"__tensor__": ""}, tensors, state[key])
                for path, value in mine.items():
                    key = path.removeprefix(prefix)
                    state[key] = carried.joined(path, value, tensors, state.get(key))
                if not isinstance(item, dict):
                    item.load_state_dict(state)

    @staticmethod
    def _load_optimizer_values(
        optimizer: Optimizer, name: str, values: dict[str, Any], tensors: dict[str, torch.Tensor]
    ) -> None:
        parameters = parameters_of(optimizer)
        states = state_of(optimizer)
        for path, value in values.items():
            _, kind, number, key = path.split("/", 3)
            held = states[parameters[int(number)]] if kind == "state" else optimizer.param_groups[int(number)]
            held[key] = carried.joined(path, value, tensors, held.get(key))


def laid_out_like(value: Any, parameter: torch.Tensor) -> bool:
    """Whether an entry of the state of `parameter` is a tensor that a peer can make from its shape alone."""
    return isinstance(value, torch.Tensor) and (value.is_contiguous() or value.stride() == parameter.stride())


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters of all its groups, in the order in which the names of its state number them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def buffer_slots(module: torch.nn.Module) -> Iterator[tuple[str, Slot]]:
    """All buffers of `module` by path, also those that are None."""
    for path, part in module.named_modules():
        for key in part._buffers:
            yield f"{path}.{key}" if path else key, (part._buffers, key)


def buffer_in(slot: Slot) -> torch.Tensor | None:
    """The current buffer."""
    return slot[0].get(slot[1])


def empty_slot(module: torch.nn.Module, path: str) -> Slot | None:
    """The slot of the buffer of that path, if it may be created here, because it is None or empty."""
    owner, _, key = path.rpartition(".")
    try:
        buffers = module.get_submodule(owner)._buffers
    except AttributeError:
        return None
    if key not in buffers or ((buffer := buffers[key]) is not None and buffer.numel() > 0):
        return None
    return buffers, key


def is_partitioned(item: object) -> bool:
    """Whether `item` is torch's ZeRO-1: an optimizer that updates some of its parameters on each rank."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(item).__mro__)


def with_state(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds the state: for a partitioned one the inner optimizer of this rank's parameters."""
    return optimizer.optim if is_partitioned(optimizer) else optimizer  # type: ignore[attr-defined]


def state_of(optimizer: Optimizer) -> Any:
    """Its state by parameter."""
    return with_state(optimizer).state


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
        f"state: this rank has '{name}' {mine}; its peer has {theirs}. All ranks must protect the same names, shapes "
        "and dtypes; is a config value read from the environment, or does build depend on something that differs?"
    )


def values_json(flat: Flat) -> str:
    """All small values of `flat` as JSON: the same text on every rank with the same values."""
    return json.dumps(flat.values, sort_keys=True)


def manifest_json(flat: Flat, capsule: bytes = b"") -> str:
    """What a peer needs to receive `flat`, as JSON. `capsule`: what it gets of this rank's own values (`Capsule`)."""
    return json.dumps(
        {
            "tensors": [
                [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                for name, tensor in flat.tensors.items()
            ],
            "values": flat.values,
            "capsule": base64.b64encode(capsule).decode(),
        }
    )
