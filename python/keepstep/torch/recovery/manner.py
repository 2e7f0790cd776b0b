"""The settings of modules and optimizers: modes, ``requires_grad`` and options, taken and put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from keepstep.torch.recovery.pieces import Slots
from keepstep.torch.sharded import fsdp
from keepstep.torch.state.registry import Registry, parameters_of

_requires_grad = attrgetter("requires_grad")
_training = attrgetter("training")


class Manner(NamedTuple):
    """The settings of modules and optimizers at one moment: all but the tensors that they hold."""

    training: list[bool]  # of each module
    requires_grad: list[bool]  # of each parameter
    wrapped: dict[int, bool]  # requires_grad by parameter, when DDP was made around it
    groups: list[dict[str, Any]]  # of all optimizers
    options: dict[int, tuple[int, torch.Tensor]]  # by id, of options that are tensors: version, and a copy


class Holders:
    """Modules and optimizers, walked once: their settings can be taken and restored. `without`: ids of buffers to leave
    out, because the capsule has them."""

    def __init__(self, registry: Registry, without: Iterable[int] = ()) -> None:
        self._registry = registry
        self.modules: list[torch.nn.Module] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.named: list[tuple[str, torch.Tensor]] = []  # parameters, buffers, tensors
        buffers: list[tuple[str, dict[str, Any], str, torch.Tensor]] = []  # slots in which modules hold theirs
        self._paths: list[str] = []  # of modules
        self.optimizers = list(registry.optimizers())
        fsdp.reshard(registry.modules())  # parameters that a forward without backward left whole are freed later
        self.untrained: set[int] = set()  # indices of protected modules without a parameter of an optimizer
        stepped = {id(parameter) for optimizer in self.optimizers for parameter in parameters_of(optimizer)}
        seen = set(without)
        for owner, item in registry.objects.items():
            if isinstance(item, torch.nn.Module):
                first = len(self.modules)
                buffers += self._walk(owner, item, seen)
                if not any(id(parameter) in stepped for parameter in item.parameters()):
                    self.untrained.update(range(first, len(self.modules)))
            elif isinstance(item, torch.Tensor) and id(item) not in seen:
                self.named.append((owner, item))
        self._buffer_names = [name for name, *_ in buffers]
        self._buffers = Slots((slots, key, buffer) for _, slots, key, buffer in buffers)

    def _walk(
        self, owner: str, root: torch.nn.Module, seen: set[int]
    ) -> Iterator[tuple[str, dict[str, Any], str, torch.Tensor]]:
        for path, module in root.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            self.modules.append(module)
            self._paths.append(f"{owner}/{path}" if path else owner)
            prefix = f"{owner}/{path}." if path else f"{owner}/"
            if type(module).__name__ == "FullyShardedDataParallel":
                continue  # FSDP1 frees and refills the memory of what it holds
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters.append(parameter)
                    self.named.append((prefix + key, parameter))
            for key, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self.named.append((prefix + key, buffer))
                    if isinstance(module._buffers, dict):
                        yield prefix + key, module._buffers, key, buffer

    def take(self, wrapped: dict[int, bool]) -> Manner:
        """Their current settings."""
        groups = [*map(dict, self._groups())]
        options = {
            id(value): (value._version, value.detach().clone())
            for group in groups
            for value in group.values()
            if isinstance(value, torch.Tensor)
        }
        requires_grad = [*map(_requires_grad, self.parameters)]
        return Manner(self.modes(), requires_grad, wrapped, groups, options)

    def modes(self) -> list[bool]:
        """Whether each module is in training mode."""
        return [*map(_training, self.modules)]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def put_back(self, manner: Manner, with_groups: bool = True) -> None:
        """Restores their settings, whatever was done to them since."""
        for module, training in zip(self.modules, manner.training, strict=True):
            module.training = training
        for parameter, wanted in zip(self.parameters, manner.requires_grad, strict=True):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
        self._buffers.put_back()
        groups = self._groups()
        if with_groups and len(groups) == len(manner.groups):
            for group, values in zip(groups, manner.groups, strict=True):
                for key, value in values.items():
                    if key != "params":
                        group[key] = value
                    if isinstance(value, torch.Tensor):
                        version, copy = manner.options[id(value)]
                        if value._version != version:
                            with torch.no_grad():
                                value.copy_(copy)
                            manner.options[id(value)] = value._version, copy

    def replaced(self) -> str | None:
        """The name of a buffer that was replaced by another tensor (``module.buffer = ...``)."""
        others = self._buffers.others()
        return self._buffer_names[others[0]] if others else None

    def late_change(self, manner: Manner) -> str | None:
        """Which option of an optimizer, or ``requires_grad`` of a parameter, differs from `manner`."""
        groups = self._groups()
        if len(groups) == len(manner.groups) and (manner.options or not _same(groups, manner.groups)):
            for group, values in zip(groups, manner.groups, strict=True):
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        same = _as_copied(value, manner.options) and group.get(key) is value
                    else:
                        same = key == "params" or _same(group.get(key), value)
                    if not same:
                        return f"the optimizer's option '{key}'"
        if [*map(_requires_grad, self.parameters)] != manner.requires_grad:
            for parameter, wanted in zip(self.parameters, manner.requires_grad, strict=True):
                if parameter.requires_grad != wanted:
                    return f"requires_grad of '{self._name(parameter)}'"
        return None

    def _name(self, parameter: torch.Tensor) -> str:
        return next(name for name, tensor in self.named if tensor is parameter)

    def other_modes(self, training: list[bool]) -> list[int]:
        """Indices of modules whose mode differs from `training`."""
        now = self.modes()
        if now == training:
            return []
        return [number for number, (a, b) in enumerate(zip(training, now, strict=True)) if a != b]

    def modes_since(self, manner: Manner) -> str | None:
        """What differs from `manner` in its mode, or in whether it needs gradients."""
        found = [f"the mode of '{self._paths[number]}'" for number in self.other_modes(manner.training)]
        now = zip(self.parameters, manner.requires_grad, strict=True)
        found += [f"requires_grad of '{self._name(p)}'" for p, before in now if p.requires_grad != before]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(found[:3]) + more if found else None

    def whole(self, number: int) -> bool:
        """Whether this module was protected itself, not as a part of another one."""
        return "/" not in self._paths[number]

    def around(self, numbers: Iterable[int]) -> set[int]:
        """Ids of the objects that contain these modules, and of what those objects only wrap."""
        owners = {self._paths[number].partition("/")[0] for number in numbers}
        wholes = [self._registry.objects[owner] for owner in owners]
        return {id(module) for whole in wholes for module in (whole, getattr(whole, "module", whole))}

    def path(self, number: int) -> str:
        """The path of a module."""
        return self._paths[number]


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):
        return False  # of tensors and arrays


def _as_copied(value: torch.Tensor, options: dict[int, tuple[int, torch.Tensor]]) -> bool:
    """Whether an option has the value in `Manner.options`; it may have been written to."""
    version, copy = options[id(value)]
    if value._version == version:
        return True
    if not torch.equal(value, copy):
        return False
    options[id(value)] = (value._version, copy)
    return True
