"""Protected state for DCP: a nested state dict with the names that torch itself would use.

``{"model": {"blocks.0.weight": ...}, "optimizer": {"state": {"blocks.0.weight": {"exp_avg": ...}}}}``, so that
``torch.distributed.checkpoint`` alone can load a part of it, whatever the number of ranks and the sharding. Beside it
``keepstep.values``, all small values as text, and ``keepstep.capsule.RANK``, what forward changed on that rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from keepstep._errors import KeepstepError
from keepstep.torch.state import carried
from keepstep.torch.state.registry import Flat, Registry, empty_slot, parameters_of, state_of, updated_here
from keepstep.torch.tensors.digest import digest
from keepstep.torch.tensors.dtensor import offsets

VALUES = "keepstep.values"
CAPSULE = "keepstep.capsule."


def parameter_names(registry: Registry) -> dict[int, str]:
    """By id: the name of each parameter in its module; the first module's that was protected."""
    names: dict[int, str] = {}
    for item in registry.objects.values():
        if isinstance(item, torch.nn.Module):
            for name, parameter in item.named_parameters():
                names.setdefault(id(parameter), name)
    return names


def paths(registry: Registry, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Where each of the registry's `names` stands in the state dict."""
    of_parameter = parameter_names(registry)
    optimizers = {name: parameters_of(item) for name, item in registry.objects.items() if isinstance(item, Optimizer)}
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        owner, _, rest = name.partition("/")
        parts = rest.split("/", 2)
        if owner in optimizers and parts[0] == "state" and len(parts) == 3:
            parameter = optimizers[owner][int(parts[1])]
            found[name] = (owner, "state", of_parameter.get(id(parameter), parts[1]), parts[2])
        else:
            found[name] = (owner, rest) if rest else (owner,)
    return found


def nested(where: Mapping[str, tuple[str, ...]], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """`tensors` as a state dict; `where`: their `paths`."""
    state: dict[str, Any] = {}
    for name, path in where.items():
        level = state
        for part in path[:-1]:
            level = level.setdefault(part, {})
        level[path[-1]] = tensors[name]
    return state


def allocate_optimizers(registry: Registry, metadata: Metadata) -> None:
    """Makes the optimizer state that `metadata` tells of and this process does not have yet."""
    of_parameter = parameter_names(registry)
    for owner, item in registry.objects.items():
        if not isinstance(item, Optimizer):
            continue
        states, here = state_of(item), updated_here(item)
        known = {
            of_parameter.get(id(each), str(index)): each
            for index, each in enumerate(parameters_of(item))
            if id(each) in here
        }
        prefix = f"{owner}.state."
        for name, entry in metadata.state_dict_metadata.items():
            if not name.startswith(prefix) or not isinstance(entry, TensorStorageMetadata):
                continue
            of, _, key = name.removeprefix(prefix).rpartition(".")
            parameter = known.get(of)
            if parameter is None or key in states.get(parameter, {}):
                continue
            dtype = entry.properties.dtype
            if entry.size == parameter.shape:
                states[parameter][key] = torch.empty_like(parameter, dtype=dtype).detach()
            else:
                states[parameter][key] = torch.empty(entry.size, dtype=dtype)


def make_room(registry: Registry, metadata: Metadata, values: Mapping[str, Any]) -> None:
    """For buffers that are None or empty here, and for the tensors inside lists and dicts that `values` tell of."""
    for name, entry in metadata.state_dict_metadata.items():
        owner = max((each for each in registry.objects if name.startswith(f"{each}.")), key=len, default="")
        path = name[len(owner) + 1 :]
        item = registry.objects.get(owner)
        if isinstance(entry, TensorStorageMetadata) and isinstance(item, torch.nn.Module) and empty_slot(item, path):
            registry.allocate(f"{owner}/{path}", entry.properties.dtype, list(entry.size))
    tensors = registry.flatten().tensors
    inside = {name: mark for path, value in values.items() for name, mark in carried.marks(path, value)}
    fresh: dict[str, torch.Tensor] = {}
    for name, where in paths(registry, list(inside)).items():
        saved = metadata.state_dict_metadata.get(".".join(where))
        if isinstance(saved, TensorStorageMetadata) and (name not in tensors or tensors[name].shape != saved.size):
            mark = inside[name]
            fresh[name] = mark.make(saved.size, saved.properties.dtype, torch.device(mark.device)).zero_()
    if fresh:
        registry.load_values(dict(values), {**tensors, **fresh})


def capsule_name(rank: int) -> str:
    return f"{CAPSULE}{rank}"


def saved_capsule(metadata: Metadata, rank: int) -> tuple[str, int] | None:
    """The capsule that `rank` begins with, and its bytes: its own, or, where there were fewer ranks, another one's."""
    sizes = {
        int(name.removeprefix(CAPSULE)): entry.size.numel()
        for name, entry in metadata.state_dict_metadata.items()
        if name.startswith(CAPSULE) and isinstance(entry, TensorStorageMetadata)
    }
    if not sizes:
        return None
    of = rank if rank in sizes else sorted(sizes)[rank % len(sizes)]
    return capsule_name(of), sizes[of]


def check_saved(metadata: Metadata, where: str) -> None:
    """KeepstepError if what is there is no checkpoint of a keepstep job."""
    if VALUES not in metadata.state_dict_metadata:
        known = ", ".join(list(metadata.state_dict_metadata)[:5])
        raise KeepstepError(
            f"{where}: this checkpoint was not written by run.checkpoint (it has no '{VALUES}'; it has {known}, ...). "
            "Load it with torch.distributed.checkpoint and keepstep.torch.checkpoint.Reader before training begins"
        )


def live_state(registry: Registry, flat: Flat) -> dict[str, Any]:
    """The protected tensors themselves, as a state dict to load into."""
    tensors = {name: flat.dtensors.get(name, tensor) for name, tensor in flat.tensors.items()}
    return nested(paths(registry, list(tensors)), tensors)


def like(snapshot: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor:
    """`snapshot`, the local bytes, as the DTensor that `tensor` is; None: it is none."""
    if tensor is None:
        return snapshot
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return DTensor.from_local(
        snapshot, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def same_on_all_ranks(registry: Registry) -> set[str]:
    """The registry's names of what ranks that have it hold alike: parameters and optimizer state, and no buffers."""
    owners = {name for name, item in registry.objects.items() if isinstance(item, (torch.nn.Module, Optimizer))}
    buffers = {
        f"{owner}/{name}"
        for owner, item in registry.objects.items()
        if isinstance(item, torch.nn.Module)
        for name, _ in item.named_buffers()
    }
    return {name for name in registry.flatten().tensors if name.partition("/")[0] in owners} - buffers


def digests(
    tensors: Mapping[str, torch.Tensor], dtensors: Mapping[str, torch.Tensor], where: Mapping[str, tuple[str, ...]]
) -> dict[tuple[str, str], int]:
    """64 bits of each tensor that this rank saves, by its name and, of a part of a DTensor, where that begins."""
    found = {}
    for name, tensor in tensors.items():
        begins: Any = offsets(dtensors[name])[1] if name in dtensors else ""
        found[".".join(where[name]), str(begins)] = digest([tensor])
    return found


def require_same(of_ranks: list[dict[tuple[str, str], int]]) -> None:
    """KeepstepError if two ranks have different things under one name: DCP would keep one and lose the other."""
    first: dict[tuple[str, str], tuple[int, int]] = {}
    for rank, mine in enumerate(of_ranks):
        for key, value in mine.items():
            other, known = first.setdefault(key, (rank, value))
            if known != value:
                raise KeepstepError(
                    f"rank {other} and rank {rank} hold different values of '{key[0]}', so one of them would be lost. "
                    "Are they different parameters with one name, as in stages of a pipeline that count their layers "
                    "each from 0? Give them the names that they have in the whole model"
                )
