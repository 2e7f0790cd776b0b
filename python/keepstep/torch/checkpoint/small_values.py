"""The small values of all ranks (numbers and the like) as one text in a checkpoint.

Most are the same on all ranks and stored once. Optimizer state is stored under parameter names, like its tensors:
stages of a pipeline number their parameters independently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from keepstep.torch.state.registry import Registry, parameters_of, updated_here


def _optimizers(registry: Registry, names: dict[int, str]) -> Iterator[tuple[str, Optimizer, dict[int, str]]]:
    """Each with its owner's name and the names of its parameters, by number; only of those that are updated here."""
    for owner, item in registry.objects.items():
        if isinstance(item, Optimizer):
            here = updated_here(item)
            known = {
                index: names.get(id(parameter), str(index))
                for index, parameter in enumerate(parameters_of(item))
                if id(parameter) in here
            }
            yield owner, item, known


def named(registry: Registry, names: dict[int, str], values: dict[str, Any]) -> dict[str, Any]:
    """The registry's `values` for a checkpoint; `names`: of parameters, by id."""
    found = dict(values)
    for owner, _, known in _optimizers(registry, names):
        prefix = f"{owner}/state/"
        for path in [path for path in found if path.startswith(prefix)]:
            number, _, key = path.removeprefix(prefix).partition("/")
            found[f"{prefix}{known[int(number)]}/{key}"] = found.pop(path)
    return found


def merged(of_ranks: list[dict[str, Any]]) -> str:
    """What all ranks gave, by rank, as one text."""
    common: dict[str, Any] = {}
    differ: set[str] = set()
    for values in of_ranks:
        for path, value in values.items():
            if common.setdefault(path, value) != value:
                differ.add(path)
    ranks = {
        str(rank): {path: values[path] for path in sorted(differ & values.keys())}
        for rank, values in enumerate(of_ranks)
        if differ & values.keys()
    }
    shared = {path: value for path, value in common.items() if path not in differ}
    return json.dumps({"common": shared, "ranks": ranks, "world": len(of_ranks)}, sort_keys=True)


def taken(text: str, registry: Registry, names: dict[int, str], rank: int, world: int) -> dict[str, Any]:
    """The values with which `rank` of `world` starts, under the registry's names.

    Where values differed, each rank takes its own if there were as many ranks as now, else the lowest rank's.
    """
    saved = json.loads(text)
    values: dict[str, Any] = {}
    for other in sorted(saved["ranks"], key=int, reverse=True):
        values.update(saved["ranks"][other])
    if world == saved["world"]:
        values.update(saved["ranks"].get(str(rank), {}))
    values.update(saved["common"])
    for owner, item, known in _optimizers(registry, names):
        numbers = {name: index for index, name in known.items()}
        for path in [path for path in values if path.startswith((f"{owner}/state/", f"{owner}/groups/"))]:
            kind, _, rest = path.removeprefix(f"{owner}/").partition("/")
            if kind == "groups":
                if int(rest.partition("/")[0]) >= len(item.param_groups):
                    del values[path]
                continue
            name, _, key = rest.rpartition("/")
            value = values.pop(path)
            if name in numbers:  # else another rank's
                values[f"{owner}/state/{numbers[name]}/{key}"] = value
    return values
